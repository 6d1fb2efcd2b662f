"""Checks before a pipeline is made. If one rank must refuse, all do, instead of waiting for it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.schedule import Schedule
from sandtable.methods.pipeline.ties import Tie

__all__ = ["agreed", "check_settings", "check_ties", "device_of", "held_stages"]


Result = TypeVar("Result")


def agreed(group: dist.ProcessGroup, prepare: Callable[[], tuple[Result, str]]) -> Result:
    """Return what `prepare` makes, if all ranks of the group make it with the same description."""
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
            raise MethodError(f"{message} (on rank {rank})")
        if other != description:
            raise MethodError(
                f"all ranks must make the same pipeline, but rank {rank} makes {other} and rank "
                f"{dist.get_rank()} {description}; give all the same stages, schedule and replicas"
            )
    return result


def held_stages(stages: Sequence[nn.Module | None], layout: StageLayout, rank: int) -> dict[int, nn.Module]:
    """Return the stages of this rank by number; none may be missing or empty."""
    held: dict[int, nn.Module] = {}
    for stage in layout.stages(rank):
        module = stages[stage]
        if module is None:
            raise MethodError(
                f"a rank must be given the stages it holds, but stage {stage} is None on {layout.name(rank)}; "
                "only stages of other ranks may be None"
            )
        if not isinstance(module, nn.Module):
            raise MethodError(
                f"a stage must be an nn.Module, but stage {stage} is a {type(module).__name__}; put functions and "
                "lists of layers into an nn.Sequential or a module of your own"
            )
        if isinstance(module, nn.Sequential | nn.ModuleList | nn.Identity) and not list(module.children()):
            raise MethodError(
                f"a stage must have a layer or more, but stage {stage} ({type(module).__name__}) is empty; "
                f"cut the model into fewer stages than {layout.num_stages}"
            )
        held[stage] = module
    return held


def check_settings(loss: Callable[[Any, Any], Any], schedule: Any, optimizer: Any, *, timeout_s: float) -> None:
    """Check the loss, the schedule, the optimizer factory and the timeout."""
    if not callable(loss):
        raise MethodError(
            f"the loss must be a function of (output, targets), with which the last stage begins the backward pass, "
            f"but got {loss!r}; try loss=nn.CrossEntropyLoss()"
        )
    if not isinstance(schedule, Schedule):
        raise MethodError(
            f"a schedule must be GPipe(m), Flush(m), Interleaved(m), PipeDream() or PipeDream2BW(m), but got "
            f"{schedule!r}; try schedule=Flush(8)"
        )
    if not callable(optimizer):
        raise MethodError(
            "optimizer must be a function that makes one, since each rank has its own parameters, but got "
            f"{type(optimizer).__name__}; try lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    if timeout_s <= 0:
        raise MethodError(f"timeout_s must be more than 0, but got {timeout_s}; try 300")


def check_ties(schedule: Schedule, tied: Sequence[Tie], layout: StageLayout, *, is_alone: bool) -> None:
    """Check that the schedule can keep copies of a parameter in several stages equal."""
    for stage, name in (copy for tie in tied for copy in tie):
        if not 0 <= stage < layout.num_stages:
            raise MethodError(
                f"a tie must name stages from 0 to {layout.num_stages - 1}, but one names stage {stage} ({name})"
            )
    crossing = [tie for tie in tied if len({stage for stage, _ in tie}) > 1]
    if crossing and not schedule.can_tie(layout, is_alone=is_alone):
        raise MethodError(
            f"parameters tied across stages require that all stages update from the same batch (with PipeDream2BW, "
            f"also one rank per stage and no data_group), but {list(crossing[0])} are tied under {schedule} on "
            f"{layout.replicas}; use Flush(...), or cut so that they are in one stage"
        )


def device_of(modules: dict[int, nn.Module]) -> torch.device:
    """Return the device of the stages."""
    devices = {tensor.device for module in modules.values() for tensor in [*module.parameters(), *module.buffers()]}
    if len(devices) > 1:
        raise MethodError(
            f"the stages of a rank must be on one device, but they are on {sorted(map(str, devices))}; move them"
        )
    return next(iter(devices), torch.device("cpu"))
