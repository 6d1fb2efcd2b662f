"""What is looked at before a pipeline is made: rules that do not need other ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.pipeline.layout import Layout
from sandtable.methods.pipeline.schedule import Schedule
from sandtable.methods.pipeline.ties import Tie

__all__ = ["check_settings", "check_ties", "device_of", "held_stages"]


def held_stages(stages: Sequence[nn.Module | None], layout: Layout, rank: int) -> dict[int, nn.Module]:
    """The stages of this rank, by number; each must be there, and must not be empty."""
    held: dict[int, nn.Module] = {}
    for stage in layout.stages(rank):
        module = stages[stage]
        if module is None:
            raise MethodError(
                f"a rank must have the stages it holds, but stage {stage} is None on {layout.name(rank)}; "
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
    """A loss there must be, a schedule, a maker of optimizers, and some time to wait."""
    if not callable(loss):
        raise MethodError(
            f"a pipeline must have a loss, a function of (output, targets), since the last stage begins the backward "
            f"pass with it, but got {loss!r}; try loss=nn.CrossEntropyLoss()"
        )
    if not isinstance(schedule, Schedule):
        raise MethodError(
            f"a schedule must be GPipe(m), Flush(m), Interleaved(m), PipeDream() or PipeDream2BW(m), but got "
            f"{schedule!r}; try schedule=Flush(8)"
        )
    if not callable(optimizer):
        raise MethodError(
            "the optimizer must be a function that makes one, since each rank has parameters of its own, but got "
            f"{type(optimizer).__name__}; try lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    if timeout_s <= 0:
        raise MethodError(f"timeout_s must be more than 0, but got {timeout_s}; 300 is usual")


def check_ties(schedule: Schedule, tied: Sequence[Tie], layout: Layout, *, is_alone: bool) -> None:
    """Copies of a parameter in several stages must be such as the schedule can keep equal."""
    for stage, name in (copy for tie in tied for copy in tie):
        if not 0 <= stage < layout.num_stages:
            raise MethodError(
                f"a tie must name stages from 0 to {layout.num_stages - 1}, but one names stage {stage} ({name})"
            )
    crossing = [tie for tie in tied if len({stage for stage, _ in tie}) > 1]
    if crossing and not schedule.can_tie(layout, is_alone=is_alone):
        raise MethodError(
            f"parameters tied across stages need updates that all stages make from the same batch, and with "
            f"PipeDream2BW one rank a stage and no data_group, but {list(crossing[0])} are tied under {schedule} on "
            f"{layout.replicas}; take Flush(...), or cut so that they are in one stage"
        )


def device_of(modules: dict[int, nn.Module]) -> torch.device:
    """Where the stages are."""
    found = {tensor.device for module in modules.values() for tensor in [*module.parameters(), *module.buffers()]}
    if len(found) > 1:
        raise MethodError(
            f"the stages of a rank must be on one device, but they are on {sorted(map(str, found))}; move them"
        )
    return next(iter(found), torch.device("cpu"))
