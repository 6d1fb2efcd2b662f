"""The NCCL stand-in: every call of torch.distributed, its values as ranks really exchange them, and its record."""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="arg-type,assignment,attr-defined,index,method-assign,union-attr"

import datetime
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tests.vgpu.virtual import Rehearsal, on_gpu, rehearse
from torch import nn
from torch.distributed import DeviceMesh, init_device_mesh

from sandtable.trace import Collective, Kind

WORLD = 3


def start(backend: str | None = "nccl", **options) -> int:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, **options)
    return dist.get_rank()


def card(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, device="cuda", dtype=dtype)


def calls(done: Rehearsal, rank: int = 0) -> list[Collective]:
    return list(done.trace.rank(rank).collectives())


# ---- starting ----


@on_gpu(ranks=WORLD)
def test_a_process_group_starts_as_under_torchrun():
    assert dist.is_nccl_available()
    assert dist.is_torchelastic_launched()
    assert not dist.is_initialized()
    rank = start(timeout=datetime.timedelta(minutes=5))
    assert dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size()) == (rank, WORLD) == (int(os.environ["RANK"]), WORLD)
    assert dist.get_backend() == "nccl"
    assert dist.group.WORLD is not None
    assert dist.get_node_local_rank() == rank
    dist.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize("how", ["env", "none", "device_id", "tcp", "mesh"])
@on_gpu(ranks=2)
def test_a_process_group_starts_every_way(how: str):
    torch.cuda.set_device(int(os.environ["RANK"]))
    if how == "env":
        dist.init_process_group("nccl", init_method="env://")
    elif how == "none":
        dist.init_process_group()
    elif how == "device_id":
        dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    elif how == "tcp":
        address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        dist.init_process_group("nccl", init_method=address, rank=int(os.environ["RANK"]), world_size=2)
    else:
        init_device_mesh("cuda", (2,))
    x = card(1.0)
    dist.all_reduce(x)
    assert x.item() == 2


@on_gpu(ranks=2)
def test_a_group_can_be_destroyed_and_made_again():
    for number in (1.0, 2.0):
        start()
        x = card(number)
        dist.all_reduce(x)
        assert x.item() == 2 * number
        dist.barrier()
        dist.destroy_process_group()


# ---- reductions ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
@on_gpu(ranks=WORLD)
def test_all_reduce_does_every_operation(dtype: torch.dtype):
    rank = start()
    expected = {"SUM": 9, "PRODUCT": 24, "MIN": 2, "MAX": 4}
    if dtype.is_floating_point:
        expected["AVG"] = 3
    for name, value in expected.items():
        x = card(rank + 2, dtype=dtype)
        assert dist.all_reduce(x, op=getattr(dist.ReduceOp, name)) is None
        assert x.tolist() == [value], name
    if dtype == torch.int64:
        for name, value in {"BAND": 0, "BOR": 7, "BXOR": 5}.items():
            x = card(rank + 2, dtype=dtype)
            dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
            assert x.item() == value, name


@on_gpu(ranks=WORLD)
def test_all_reduce_multiplies_before_it_adds():
    rank = start()
    x = card(rank + 1)
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
    assert x.item() == 3
    y = card(rank + 1)
    dist.all_reduce(y, op=dist._make_nccl_premul_sum(card(2.0)))
    assert y.item() == 12


@on_gpu(ranks=WORLD)
def test_reduce_gives_the_result_to_its_root_alone():
    rank = start()
    x = card(rank + 1.0)
    dist.reduce(x, dst=1)
    assert x.item() == (6 if rank == 1 else rank + 1)


@on_gpu(ranks=WORLD)
def test_all_reduce_of_a_view_changes_only_the_view():
    start()
    x = card(1, 1, 1, 1)
    dist.all_reduce(x[1:3])
    assert x.tolist() == [1, 3, 3, 1]


@on_gpu(ranks=2)
def test_complex_and_bool_tensors_are_reduced():
    rank = start()
    x = torch.tensor([1 + 2j], device="cuda")
    dist.all_reduce(x)
    assert x.item() == 2 + 4j
    flag = torch.tensor([rank == 1], device="cuda")
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    assert flag.item() is True


@on_gpu(ranks=2)
def test_large_values_stay_unknown_and_finite():
    start()
    x = torch.rand(1 << 16, device="cuda")
    dist.all_reduce(x)
    assert x.shape == (1 << 16,)
    assert torch.isfinite(x.sum()).item()
    out = torch.empty(1 << 17, device="cuda")
    dist.all_gather_into_tensor(out, x)
    dist.reduce_scatter_tensor(x, out)


# ---- gathering and scattering ----


@on_gpu(ranks=WORLD)
def test_all_gather_collects_from_every_rank():
    rank = start()
    mine = card(rank, 10 + rank)
    parts = [torch.zeros(2, device="cuda") for _ in range(WORLD)]
    dist.all_gather(parts, mine)
    assert [part.tolist() for part in parts] == [[0, 10], [1, 11], [2, 12]]
    whole = torch.zeros(2 * WORLD, device="cuda")
    dist.all_gather_into_tensor(whole, mine)
    assert whole.tolist() == [0, 10, 1, 11, 2, 12]
    stacked = torch.zeros(WORLD, 2, device="cuda")
    dist.all_gather_into_tensor(stacked, mine)
    assert stacked[2].tolist() == [2, 12]
    old = torch.zeros(2 * WORLD, device="cuda")
    dist._all_gather_base(old, mine)
    assert old.tolist() == whole.tolist()


@on_gpu(ranks=WORLD)
def test_all_gather_takes_uneven_parts():
    rank = start()
    parts = [torch.zeros(r + 1, device="cuda") for r in range(WORLD)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank), device="cuda"))
    assert [part.tolist() for part in parts] == [[0], [1, 1], [2, 2, 2]]


@on_gpu(ranks=WORLD)
def test_reduce_scatter_gives_each_rank_its_part():
    rank = start()
    out = torch.zeros(1, device="cuda")
    dist.reduce_scatter(out, [card(rank + part) for part in range(WORLD)])
    assert out.item() == 3 + 3 * rank
    dist.reduce_scatter_tensor(out, card(*(rank + part for part in range(WORLD))), op=dist.ReduceOp.AVG)
    assert out.item() == 1 + rank
    dist.reduce_scatter_tensor(out, card(*(rank + part for part in range(WORLD))), op=dist.ReduceOp.MAX)
    assert out.item() == 2 + rank


@on_gpu(ranks=WORLD)
def test_gather_collects_at_its_root():
    rank = start()
    parts = [torch.zeros(1, device="cuda") for _ in range(WORLD)] if rank == 2 else None
    dist.gather(card(rank), parts, dst=2)
    if parts is not None:
        assert [part.item() for part in parts] == [0, 1, 2]


@on_gpu(ranks=WORLD)
def test_scatter_gives_out_from_its_root():
    rank = start()
    out = torch.zeros(1, device="cuda")
    dist.scatter(out, [card(10 * r) for r in range(WORLD)] if rank == 1 else None, src=1)
    assert out.item() == 10 * rank


@on_gpu(ranks=WORLD)
def test_broadcast_copies_the_roots_tensor():
    rank = start()
    x = card(rank, rank)
    dist.broadcast(x, src=2)
    assert x.tolist() == [2, 2]
    dist._broadcast_coalesced(dist.group.WORLD, [card(1.0), card(2.0)], 1 << 20, 0)


@on_gpu(ranks=WORLD)
def test_all_to_all_exchanges_parts():
    rank = start()
    outs = [torch.zeros(1, device="cuda") for _ in range(WORLD)]
    dist.all_to_all(outs, [card(10 * rank + part) for part in range(WORLD)])
    assert [out.item() for out in outs] == [rank, 10 + rank, 20 + rank]
    out = torch.zeros(WORLD, device="cuda")
    dist.all_to_all_single(out, card(*(10 * rank + part for part in range(WORLD))))
    assert out.tolist() == [rank, 10 + rank, 20 + rank]


@on_gpu(ranks=WORLD)
def test_all_to_all_takes_uneven_splits():
    rank = start()
    # Rank r sends p + 1 rows to rank p.
    sent = torch.full((6, 2), float(rank), device="cuda")
    got = torch.zeros(3 * (rank + 1), 2, device="cuda")
    dist.all_to_all_single(got, sent, output_split_sizes=[rank + 1] * 3, input_split_sizes=[1, 2, 3])
    assert got[:, 0].tolist() == [float(r) for r in range(3) for _ in range(rank + 1)]
    outs = [torch.zeros(rank + 1, device="cuda") for _ in range(WORLD)]
    dist.all_to_all(outs, [torch.full((part + 1,), float(rank), device="cuda") for part in range(WORLD)])
    assert [out.tolist() for out in outs] == [[float(r)] * (rank + 1) for r in range(3)]


# ---- point to point ----


@on_gpu(ranks=WORLD)
def test_values_are_sent_and_received():
    rank = start()
    if rank == 0:
        dist.send(card(1, 2), dst=2)
        dist.send(card(3, 4), dst=2, tag=7)
    elif rank == 2:
        x, y = torch.zeros(2, device="cuda"), torch.zeros(2, device="cuda")
        assert dist.recv(x, src=0) == 0
        dist.recv(y, src=0, tag=7)
        assert (x.tolist(), y.tolist()) == ([1, 2], [3, 4])


@on_gpu(ranks=WORLD)
def test_sends_and_receives_in_a_ring_do_not_block():
    rank = start()
    got = torch.zeros(1, device="cuda")
    send = dist.isend(card(rank), dst=(rank + 1) % WORLD)
    receive = dist.irecv(got, src=(rank - 1) % WORLD)
    send.wait()
    receive.wait()
    assert receive.is_completed()
    assert got.item() == (rank - 1) % WORLD


@on_gpu(ranks=WORLD)
def test_a_batch_of_sends_and_receives_runs_together():
    rank = start()
    left, right = (rank - 1) % WORLD, (rank + 1) % WORLD
    from_left, from_right = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    operations = [
        dist.P2POp(dist.irecv, from_left, left),
        dist.P2POp(dist.irecv, from_right, right),
        dist.P2POp(dist.isend, card(rank), right),
        dist.P2POp(dist.isend, card(rank + 100), left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (from_left.item(), from_right.item()) == (left, right + 100)


@on_gpu(ranks=2)
def test_objects_are_sent_and_received():
    rank = start()
    got = [None, None]
    if rank == 0:
        dist.send_object_list(["hello", {"x": 1}], dst=1)
    else:
        dist.recv_object_list(got, src=0)
        assert got == ["hello", {"x": 1}]


# ---- objects ----


@on_gpu(ranks=WORLD)
def test_objects_are_gathered_broadcast_and_scattered():
    rank = start()
    everyone = [None] * WORLD
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * (100 * rank)})
    assert [thing["rank"] for thing in everyone] == [0, 1, 2]
    assert [len(thing["text"]) for thing in everyone] == [0, 100, 200]
    things = ["a", [1, 2]] if rank == 1 else [None, None]
    dist.broadcast_object_list(things, src=1)
    assert things == ["a", [1, 2]]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(WORLD)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]
    gathered: list[Any] | None = [None] * WORLD if rank == 0 else None
    dist.gather_object(rank * 2, gathered, dst=0)
    if rank == 0:
        assert gathered == [0, 2, 4]
    large = [os.urandom(200_000)] if rank == 0 else [None]
    dist.broadcast_object_list(large, src=0)
    assert len(large[0]) == 200_000
    large = [None] * WORLD
    dist.all_gather_object(large, list(range(50_000)))
    assert large[2][-1] == 49_999


# ---- barriers ----


@on_gpu(ranks=WORLD)
def test_barriers_are_passed_by_all():
    start("cpu:gloo,cuda:nccl")
    dist.barrier()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(group=dist.new_group(backend="gloo"))


# ---- asynchronous ----


@on_gpu(ranks=WORLD)
def test_work_handles_and_futures_carry_results():
    rank = start()
    x = card(rank + 1)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert x.item() == 6
    if torch.__version__ >= "2.13":  # before, torch's own function has no Python form of what it returns
        assert work.exception() is None
    future = dist.all_reduce(card(1.0), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert doubled.wait().item() == 2 * WORLD
    assert torch.futures.collect_all([future]).wait()[0].value()[0].item() == WORLD
    called = []
    dist.all_reduce(card(1.0), async_op=True).get_future().add_done_callback(lambda _: called.append(True))
    assert called == [True]
    works = [
        dist.broadcast(card(1.0), 0, async_op=True),
        dist.all_gather([torch.zeros(1, device="cuda") for _ in range(WORLD)], card(1.0), async_op=True),
        dist.reduce_scatter_tensor(torch.zeros(1, device="cuda"), torch.zeros(WORLD, device="cuda"), async_op=True),
        dist.all_to_all_single(torch.zeros(WORLD, device="cuda"), torch.zeros(WORLD, device="cuda"), async_op=True),
    ]
    for each in works:
        each.wait(datetime.timedelta(seconds=5))
    assert works[1].result() is not None


@on_gpu(ranks=WORLD)
def test_coalesced_calls_run_as_one():
    rank = start()
    xs = [card(rank), card(rank, rank)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    assert [x.tolist() for x in xs] == [[3], [3, 3]]
    outs = [torch.zeros(WORLD, device="cuda") for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, card(rank))
    manager.wait()
    assert outs[1].tolist() == [0, 1, 2]
    with dist._coalescing_manager(device=torch.device("cuda", rank)):
        for _ in xs:
            dist.reduce_scatter_tensor(torch.zeros(1, device="cuda"), torch.zeros(WORLD, device="cuda"))
    dist.all_reduce_coalesced(xs)
    assert xs[0].item() == 9


# ---- groups ----


@on_gpu(ranks=4)
def test_sub_groups_of_any_shape_exchange_among_themselves():
    rank = start()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[rank % 2]
    x = card(rank)
    dist.all_reduce(x, group=mine)
    assert x.item() == (2 if rank % 2 == 0 else 4)
    assert dist.get_rank(mine) == rank // 2
    assert dist.get_world_size(mine) == 2
    assert dist.get_rank(pairs[1 - rank % 2]) == -1
    assert dist.get_process_group_ranks(mine) == [rank % 2, rank % 2 + 2]
    assert dist.get_global_rank(mine, 1) == rank % 2 + 2
    assert dist.get_group_rank(mine, rank) == rank // 2
    three = dist.new_group([3, 1, 0])
    if rank != 2:
        y = card(rank)
        dist.broadcast(y, src=3, group=three)
        assert y.item() == 3
        z = card(rank)
        dist.reduce(z, dst=1, group=three)
        assert z.item() == (4 if rank == 1 else rank)
    groups, _ = dist.new_subgroups(2)[1], None
    assert len(groups) == 2
    current, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    w = card(rank)
    dist.all_reduce(w, group=current)
    assert w.item() == 3
    dist.barrier(group=mine)
    alone = dist.new_group([2])
    if rank == 2:
        dist.all_reduce(card(1.0), group=alone)
    dist.destroy_process_group(current)


@pytest.mark.parametrize(
    "options", [{}, {"sort_ranks": False}, {"group_desc": "mine"}, {"use_local_synchronization": True}], ids=str
)
@on_gpu(ranks=4)
def test_a_group_of_other_ranks_leaves_what_torch_leaves(options: dict[str, Any]):
    rank = start()
    others = [other for other in (3, 0, 2, 1) if other != rank]
    world, seen = dist.distributed_c10d._world, []
    for make in (dist.new_group, dist.new_group.__wrapped__):
        before = world.group_count
        group = make(others, **options)
        seen.append((group, world.group_count - before, world.pg_group_ranks.get(group)))
    assert seen[0] == seen[1]
    assert dist.new_group([rank]).group_name == str(world.group_count - 1)


@pytest.mark.parametrize("ranks", [[1, 1], [1, 4], [-1, 1]], ids=str)
@on_gpu(ranks=4)
def test_ranks_that_are_no_group_are_refused_on_every_rank_as_torch_does(ranks: list[int]):
    start()
    refusals = []
    for make in (dist.new_group, dist.new_group.__wrapped__):
        with pytest.raises(ValueError, match="rank") as refused:
            make(ranks)
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]


@on_gpu(ranks=4)
def test_point_to_point_in_a_group_uses_ranks_of_the_world_or_of_the_group():
    rank = start()
    group = dist.new_group([1, 3])
    if rank == 1:
        dist.send(card(5.0), dst=3, group=group)
        dist.send(card(6.0), group=group, group_dst=1)
    if rank == 3:
        x = card(0.0)
        dist.recv(x, src=1, group=group)
        assert x.item() == 5
        dist.recv(x, group=group, group_src=0)
        assert x.item() == 6


@on_gpu(ranks=4)
def test_a_group_is_split():
    rank = int(os.environ["RANK"])
    start(device_id=torch.device("cuda", rank))
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    x = card(rank)
    dist.all_reduce(x, group=half)
    assert x.item() == (1 if rank < 2 else 5)
    assert dist.get_world_size(half) == 2
    odd = dist.split_group(split_ranks=[[1, 3], [0, 2]])
    y = card(rank)
    dist.all_reduce(y, group=odd)
    assert y.item() == (4 if rank % 2 else 2)


@on_gpu(ranks=4)
def test_a_mesh_of_two_axes_has_a_group_along_each():
    rank = start()
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    assert tuple(mesh.get_coordinate() or ()) == (rank // 2, rank % 2)
    x, y = card(rank), card(rank)
    dist.all_reduce(x, group=mesh["tp"].get_group())
    dist.all_reduce(y, group=mesh.get_group("dp"))
    assert x.item() == (1 if rank < 2 else 5)
    assert y.item() == (2 if rank % 2 == 0 else 4)
    flat = mesh["dp", "tp"]._flatten("all")
    z = card(rank)
    dist.all_reduce(z, group=flat.get_group())
    assert z.item() == 6
    assert mesh.get_local_rank("tp") == rank % 2
    assert mesh.size() == 4
    assert mesh["dp"].size() == 2


@on_gpu(ranks=8)
def test_a_mesh_of_three_axes_has_a_group_along_each():
    rank = start()
    mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    sums = []
    for name in ("pp", "dp", "tp"):
        x = card(rank)
        dist.all_reduce(x, group=mesh.get_group(name))
        sums.append(int(x.item()))
    assert sums == [2 * (rank % 4) + 4, 2 * (rank - (rank // 2 % 2) * 2) + 2, 2 * (rank // 2 * 2) + 1]
    odd = DeviceMesh("cuda", [[1, 3, 5, 7], [0, 2, 4, 6]])
    y = card(1.0)
    dist.all_reduce(y, group=odd.get_group(1))
    assert y.item() == 4


@on_gpu(ranks=4)
def test_distributed_tensors_are_sharded_and_gathered():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    rank = start()
    mesh = init_device_mesh("cuda", (4,))
    whole = torch.arange(8.0, device="cuda")
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.to_local().tolist() == [2 * rank, 2 * rank + 1]
    assert sharded.full_tensor().tolist() == list(range(8))
    assert sharded.redistribute(placements=[Replicate()]).to_local().tolist() == list(range(8))
    partial = DTensor.from_local(card(1.0), mesh, [Partial()])
    assert partial.full_tensor().item() == 4
    assert (sharded + 1).sum().full_tensor().item() == 36
    uneven = distribute_tensor(torch.arange(6.0, device="cuda"), mesh, [Shard(0)])
    assert uneven.full_tensor().tolist() == list(range(6))


# ---- functional collectives ----


@on_gpu(ranks=WORLD)
def test_functional_collectives_return_their_results():
    rank = start()
    group = dist.group.WORLD
    assert functional.all_reduce(card(rank), "sum", group).item() == 3
    assert functional.all_reduce(card(rank), "avg", group).item() == 1
    assert functional.all_gather_tensor(card(rank), 0, group).tolist() == [0, 1, 2]
    assert functional.reduce_scatter_tensor(card(1, 2, 3), "sum", 0, group).item() == 3 * (rank + 1)
    assert functional.broadcast(card(rank), 1, group).item() == 1
    assert functional.all_to_all_single(card(*range(3)), None, None, group).tolist() == [rank] * 3
    several = functional.all_reduce_coalesced([card(1.0), card(2.0)], "sum", group)
    assert [x.item() for x in several] == [3, 6]
    gathered = functional.all_gather_into_tensor_coalesced([card(rank)], group)
    assert gathered[0].tolist() == [0, 1, 2]
    scattered = functional.reduce_scatter_tensor_coalesced([card(1, 2, 3)], "sum", [0], group)
    assert scattered[0].item() == 3 * (rank + 1)
    permuted = functional.permute_tensor(card(rank), [1, 2, 0], group)
    assert permuted.item() == (rank - 1) % 3
    waited = functional.wait_tensor(functional.all_reduce(card(1.0), "sum", group))
    assert waited.item() == 3
    x = card(rank).requires_grad_()
    functional.all_gather_tensor_autograd(x, 0, group).sum().backward()
    assert x.grad is not None


@on_gpu(ranks=2)
def test_collectives_with_gradients_flow_backward():
    import torch.distributed.nn.functional as differentiable

    rank = start()
    x = card(rank + 1.0).requires_grad_()
    differentiable.all_reduce(x * 2).sum().backward()
    assert x.grad.item() == 4
    y = card(rank + 1.0).requires_grad_()
    torch.cat(differentiable.all_gather(y)).sum().backward()
    assert y.grad.item() == 2


# ---- gloo beside nccl ----


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "gloo"])
@on_gpu(ranks=WORLD)
def test_host_tensors_go_through_gloo(backend: str):
    rank = start(backend)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    assert x.item() == 3
    parts = [torch.zeros(1) for _ in range(WORLD)]
    dist.all_gather(parts, torch.tensor([float(rank)]))
    assert [part.item() for part in parts] == [0, 1, 2]
    big = torch.full((1 << 16,), float(rank))
    dist.all_reduce(big)
    assert big.unique().tolist() == [3]
    if backend != "gloo":
        y = card(rank)
        dist.all_reduce(y)
        assert y.item() == 3
    dist.barrier()


@on_gpu(ranks=2)
def test_a_gloo_group_beside_nccl_moves_host_tensors():
    rank = start()
    group = dist.new_group(backend="gloo")
    x = torch.tensor([rank])
    dist.all_reduce(x, group=group)
    assert x.item() == 1
    assert dist.get_backend(group) == "gloo"
    if rank == 0:
        dist.send(torch.tensor([5]), 1, group=group)
    else:
        dist.recv(x, 0, group=group)
        assert x.item() == 5


@on_gpu(ranks=2)
def test_nccl_refuses_host_tensors_as_it_does():
    start()
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))


@on_gpu(ranks=2)
def test_wrong_arguments_are_refused_as_torch_does():
    start()
    with pytest.raises((ValueError, RuntimeError)):
        dist.all_gather_into_tensor(torch.zeros(3, device="cuda"), torch.zeros(2, device="cuda"))
    with pytest.raises((ValueError, RuntimeError)):
        dist.broadcast(card(1.0), src=5)
    with pytest.raises(TypeError):
        dist.all_reduce(card(1.0), op="sum")
    with pytest.raises(ValueError, match="trying to initialize the default process group twice"):
        dist.init_process_group("nccl")


@on_gpu(ranks=2)
def test_the_rendezvous_store_keeps_a_ranks_own_keys_and_does_not_wait_for_others():
    rank = start()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key{rank}", f"value{rank}")
    assert store.get(f"key{rank}") == f"value{rank}".encode()
    assert store.add("count", 2) == 2
    store.wait([f"key{rank}"])
    before = time.monotonic()
    with pytest.raises(Exception, match=r"key|[Tt]imeout"):
        store.get(f"key{1 - rank}")
    assert time.monotonic() - before < 20


@on_gpu(ranks=2)
def test_a_store_made_by_hand_connects():
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0)
    store.set("ready", "yes")
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    x = card(rank)
    dist.all_reduce(x)
    assert x.item() == 1


# ---- data parallel training ----


@on_gpu(ranks=2)
def test_ddp_averages_small_gradients_and_broadcasts_parameters():
    from torch.nn.parallel import DistributedDataParallel

    rank = start()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False).cuda(), device_ids=[rank])
    same = [torch.zeros(1, 2, device="cuda") for _ in range(2)]
    dist.all_gather(same, model.module.weight.detach())
    assert same[0].tolist() == same[1].tolist()
    model(torch.full((1, 2), float(rank), device="cuda")).sum().backward()
    assert model.module.weight.grad.tolist() == [[0.5, 0.5]]
    with model.no_sync():
        model(torch.full((1, 2), float(rank), device="cuda")).sum().backward()
    assert model.module.weight.grad[0, 0].item() == 0.5 + rank


@pytest.mark.parametrize("hook", ["allreduce", "fp16", "bf16", "powersgd", "own", "zero"])
@on_gpu(ranks=2)
def test_ddp_communication_hooks_run(hook: str):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    rank = start()
    model = DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[rank])
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "own":

        def own(group, bucket):
            future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
            return future.then(lambda done: done.value()[0])

        model.register_comm_hook(None, own)
    elif hook != "zero":
        names = {"allreduce": "allreduce_hook", "fp16": "fp16_compress_hook", "bf16": "bf16_compress_hook"}
        model.register_comm_hook(None, getattr(default_hooks, names[hook]))
    if hook == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(4, 64, device="cuda")).sum().backward()
        optimizer.step()
    assert model.module.weight.grad.shape == (64, 64)


@pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 1},
        {"broadcast_buffers": False},
        {"mixed_precision": "bf16"},
    ],
    ids=lambda options: next(iter(options)),
)
@on_gpu(ranks=2)
def test_ddp_options_are_honoured(options: dict[str, Any]):
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.parallel.distributed import _MixedPrecision

    rank = start()
    if "mixed_precision" in options:
        options = {"mixed_precision": _MixedPrecision(param_dtype=torch.bfloat16)}
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)).cuda()
    model.unused = nn.Linear(2, 2).cuda() if "find_unused_parameters" in options else None
    if model.unused is not None:
        model.forward = lambda x: model[2](model[1](model[0](x)))
    wrapped = DistributedDataParallel(model, device_ids=[rank], **options)
    for _ in range(3):
        wrapped(torch.rand(4, 64, device="cuda")).sum().backward()
    assert model[0].weight.grad is not None


@on_gpu(ranks=2)
def test_synchronised_batch_norm_trains():
    from torch.nn.parallel import DistributedDataParallel

    rank = start()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).cuda()
    wrapped = DistributedDataParallel(model, device_ids=[rank])
    wrapped(torch.rand(4, 3, 16, 16, device="cuda")).sum().backward()
    assert model[0].weight.grad is not None


@on_gpu(ranks=2)
def test_uneven_inputs_are_joined():
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    rank = start()
    model = DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[rank])
    with Join([model]):
        for _ in range(2 + rank):
            model(torch.rand(2, 4, device="cuda")).sum().backward()


@on_gpu(ranks=2)
def test_the_norm_of_a_distributed_gradient_is_clipped():
    from torch.distributed.fsdp import fully_shard

    start()
    model = nn.Linear(64, 64).cuda()
    fully_shard(model)
    model(torch.rand(2, 64, device="cuda")).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert torch.isfinite(norm.full_tensor()).item()


# ---- the record of a call ----


def issue_known_calls() -> None:
    rank = start()
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.zeros(1024, device="cuda", dtype=torch.bfloat16), op=dist.ReduceOp.AVG)
    dist.all_gather_into_tensor(torch.zeros(3072, device="cuda"), torch.zeros(1024, device="cuda"))
    if rank < 2:
        dist.reduce_scatter_tensor(torch.zeros(512, device="cuda"), torch.zeros(1024, device="cuda"), group=pair)
        dist.broadcast(torch.zeros(256, device="cuda", dtype=torch.int64), src=1, group=pair)
    work = dist.all_to_all_single(
        torch.zeros(6, 100, device="cuda"),
        torch.zeros(6, 100, device="cuda"),
        output_split_sizes=[2, 2, 2],
        input_split_sizes=[2, 2, 2],
        async_op=True,
    )
    work.wait()
    if rank == 0:
        dist.send(torch.zeros(10, device="cuda"), dst=2)
        dist.send(torch.zeros(20, device="cuda"), dst=2)
    if rank == 2:
        dist.recv(torch.zeros(10, device="cuda"), src=0)
        dist.recv(torch.zeros(20, device="cuda"), src=0)
    dist.barrier()


@pytest.fixture(scope="module")
def known_calls() -> Rehearsal:
    return rehearse(issue_known_calls, ranks=3)


def test_a_call_is_recorded_with_its_operator_type_and_bytes(known_calls):
    found = [(call.op, call.dtype, call.bytes_in, call.bytes_out, call.reduce) for call in calls(known_calls)]
    assert found[:7] == [
        ("all_reduce", "bfloat16", 2048, 2048, "avg"),
        ("all_gather", "float32", 4096, 12288, ""),
        ("reduce_scatter", "float32", 4096, 2048, "sum"),
        ("broadcast", "int64", 2048, 2048, ""),
        ("all_to_all", "float32", 2400, 2400, ""),
        ("send", "float32", 40, 0, ""),
        ("send", "float32", 80, 0, ""),
    ]
    assert found[7][0] == "barrier"
    received = [call for call in calls(known_calls, 2) if call.op == "recv"]
    assert [(call.bytes_in, call.bytes_out) for call in received] == [(0, 40), (0, 80)]


def test_a_call_is_recorded_with_its_group_and_number(known_calls):
    found = [(call.op, call.group.ranks, call.seq) for call in calls(known_calls)]
    assert found == [
        ("all_reduce", (0, 1, 2), 0),
        ("all_gather", (0, 1, 2), 1),
        ("reduce_scatter", (0, 1), 0),
        ("broadcast", (0, 1), 1),
        ("all_to_all", (0, 1, 2), 2),
        ("send", (0, 1, 2), 0),
        ("send", (0, 1, 2), 1),
        ("barrier", (0, 1, 2), 3),
    ]


def test_a_call_is_recorded_with_its_peer_or_root(known_calls):
    by_op = {call.op: call for call in calls(known_calls)}
    assert by_op["broadcast"].peer == 1
    assert by_op["send"].peer == 2
    assert by_op["all_reduce"].peer is None
    assert {call.peer for call in calls(known_calls, 2) if call.op == "recv"} == {0}


def test_a_call_is_recorded_with_its_line(known_calls):
    first = calls(known_calls)[0].line
    assert (first.file, first.function) == (__file__, "issue_known_calls")
    assert first.line == issue_known_calls.__code__.co_firstlineno + 3


def test_uneven_splits_are_recorded(known_calls):
    (call,) = [call for call in calls(known_calls) if call.op == "all_to_all"]
    assert call.splits == ((2, 2, 2), (2, 2, 2))


def test_an_asynchronous_call_runs_on_a_stream_of_its_group_until_waited_for(known_calls):
    view = known_calls.trace.rank(0)
    by_op = {call.op: call for call in calls(known_calls)}
    call = by_op["all_to_all"]
    assert call.is_async
    assert not by_op["all_reduce"].is_async
    assert call.stream != 0
    assert by_op["all_reduce"].stream == 0
    waits = (view.records.kind == Kind.WAIT).nonzero()[0]
    assert call.row in view.records.ref[waits].tolist()
    assert call.index < int(waits[0])


def test_groups_are_recorded_on_every_rank_and_members_alone_belong(known_calls):
    assert [group.ranks for group in known_calls.trace.groups] == [(0, 1, 2), (0, 1)]
    assert len(known_calls.trace.rank(0).groups) == 2
    assert len(known_calls.trace.rank(2).groups) == 1


def issue_batches() -> None:
    rank = start()
    other = 1 - rank
    dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.zeros(8, device="cuda"), other),
            dist.P2POp(dist.irecv, torch.zeros(8, device="cuda"), other),
        ]
    )[0].wait()
    dist.all_reduce(torch.zeros(8, device="cuda"))


def test_calls_issued_together_share_a_batch_number():
    found = calls(rehearse(issue_batches, ranks=2))
    batches = [call.batch for call in found]
    ops = [call.op for call in found]
    assert ops == ["send", "recv", "all_reduce"]
    assert batches[-3] == batches[-2] != 0
    assert batches[-1] == 0


def issue_coalesced() -> None:
    start()
    outs = [torch.zeros(8, device="cuda"), torch.zeros(16, device="cuda")]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, torch.zeros(out.numel() // 2, device="cuda"))
    manager.wait()


def test_coalesced_calls_share_a_batch_number_and_a_stream():
    first, second = calls(rehearse(issue_coalesced, ranks=2))
    assert (first.bytes_out, second.bytes_out) == (32, 64)
    assert first.batch == second.batch != 0
    assert first.stream == second.stream != 0


def ddp_step() -> None:
    from torch.nn.parallel import DistributedDataParallel

    rank = start()
    model = DistributedDataParallel(nn.Linear(1024, 1024).cuda(), device_ids=[rank])
    model(torch.rand(4, 1024, device="cuda")).sum().backward()


def test_ddp_reduces_exactly_its_parameters_in_backward():
    found = [
        call for call in calls(rehearse(ddp_step, ranks=2)) if call.op == "all_reduce" and call.phase.name == "BACKWARD"
    ]
    assert sum(call.bytes_in for call in found) == 4 * (1024 * 1024 + 1024)
    assert all(call.is_async for call in found)
