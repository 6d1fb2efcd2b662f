"""Agreement before a start: what one rank must refuse, all refuse, instead of waiting for it."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from sandtable.errors import MethodError

__all__ = ["agreed"]

Result = TypeVar("Result")


def agreed(group: dist.ProcessGroup, prepare: Callable[[], tuple[Result, str]]) -> Result:
    """What `prepare` makes, if it does so on all ranks of the group, with the same description."""
    own: tuple[str | None, str]
    try:
        result, description = prepare()
        own, refusal = (None, description), None
    except MethodError as error:
        own, refusal = (str(error), ""), error
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    if refusal is not None:
        raise refusal
    for rank, (message, other) in zip(dist.get_process_group_ranks(group), everyone, strict=True):
        if message is not None:
            raise MethodError(f"{message} (so says rank {rank})")
        if other != description:
            raise MethodError(
                f"all ranks must make the same pipeline, but rank {rank} makes {other} and rank "
                f"{dist.get_rank()} {description}; give all the same stages, schedule and replicas"
            )
    return result
