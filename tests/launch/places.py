"""Ranks of a plan, for tests of what each finds in its environment."""

from sandtable.launch import LaunchPlan, RankPlace, World

PORT = 29512


def variables_of(plan: LaunchPlan, rank: int, *, nodes: int = 1, gpus: int = 8) -> dict[str, str]:
    """Return what the launcher sets for a rank, on a cluster of `nodes` with `gpus` each."""
    return plan.environment.variables(place_of(plan, rank, nodes=nodes, gpus=gpus))


def place_of(plan: LaunchPlan, rank: int, *, nodes: int = 1, gpus: int = 8) -> RankPlace:
    world = plan.world(num_nodes=nodes, gpus_per_node=gpus)
    return RankPlace(
        rank=rank,
        world_size=world.num_nodes * world.ranks_per_node,
        ranks_per_node=world.ranks_per_node,
        master_port=PORT,
    )


def world_of(plan: LaunchPlan, *, nodes: int = 1, gpus: int = 8) -> tuple[int, int]:
    """Return the number of nodes and of ranks per node."""
    world: World = plan.world(num_nodes=nodes, gpus_per_node=gpus)
    return world.num_nodes, world.ranks_per_node
