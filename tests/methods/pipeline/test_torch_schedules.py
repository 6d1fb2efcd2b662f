"""Stages run under torch's own pipeline schedules: two processes, the gradients of one."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from tests.methods.pipeline.models import Gpt, LateSize, Residual, inputs_of
from tests.methods.processes import run
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from sandtable.methods.pipeline import cut

Case = tuple[Callable[[], nn.Module], torch.Tensor, str, type[PipelineScheduleSingle]]
CASES: dict[str, Case] = {
    "skip connection": (Residual, inputs_of("residual", 4), "blocks.1.bn1", Schedule1F1B),
    "tied weights": (Gpt, inputs_of("gpt", 4), "blocks.1.attention.projection", ScheduleGPipe),
    "shapes alone": (LateSize, torch.ones(4, 4).cumsum(0), "two", Schedule1F1B),
}


def _model(case: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[case][0]().eval()


def _loss(output: torch.Tensor, _: torch.Tensor | None = None) -> torch.Tensor:
    return output.square().mean()


def _gradients_of_one_stage() -> dict[str, dict[str, torch.Tensor | None]]:
    torch.set_num_threads(1)
    rank, found = dist.get_rank(), {}
    for case, (_, inputs, boundary, schedule) in CASES.items():
        stage = cut(_model(case), inputs[:2], [boundary])[rank]
        steps = schedule(PipelineStage(stage, rank, 2, torch.device("cpu")), 2, loss_fn=_loss)
        if rank == 0:
            steps.step(inputs)
        else:
            steps.step(target=torch.zeros(4))
        found[case] = {key: value.grad for key, value in stage.named_parameters()}
    return found


def test_two_processes_have_the_gradients_of_one():
    stages = run(2, _gradients_of_one_stage)
    for case in CASES:
        first, last = (stage[case] for stage in stages)
        if case == "tied weights":
            first["tokens.weight"] += last.pop("head.weight")
        model = _model(case)
        for half in CASES[case][1].chunk(2):
            (_loss(model(half)) / 2).backward()
        expected = {name: value.grad for name, value in model.named_parameters()}
        assert {*first, *last} == set(expected), case
        for name, gradient in {**first, **last}.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)
