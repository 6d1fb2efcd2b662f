"""A pipeline keeps to its own group beside other kinds of parallelism."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.pipeline.training import alone, batches, make_stages, momentum, stale, weights_of
from tests.methods.processes import run
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from sandtable.methods.pipeline import Flush, PipeDream, Pipeline


def on_a_mesh(schedule):
    """Train two pipelines of two stages, each on its half of the rows."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    pipeline = Pipeline(
        make_stages(2),
        momentum,
        loss=F.cross_entropy,
        schedule=schedule,
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group(),
        timeout_s=40,
    )
    half = mesh["dp"].get_local_rank()
    for inputs, targets in batches(6):
        pipeline.step(inputs.chunk(2)[half], targets.chunk(2)[half])
    pipeline.close()
    return weights_of(pipeline.modules)


def test_data_parallel_pipelines_train_as_one_process_on_all_rows():
    expected = alone(batches(6), 2)["weights"]
    for weights in run(4, on_a_mesh, Flush(2)):
        for name, weight in weights.items():
            assert (weight - expected[name]).abs().max() < 1e-5, name


def test_data_parallel_pipelines_have_the_staleness_of_one():
    expected = stale(batches(6), (1, 1), lambda stage, number: max(0, number - (1 - stage)), lambda _: 1)
    for weights in run(4, on_a_mesh, PipeDream()):
        for name, weight in weights.items():
            assert (weight - expected[name]).abs().max() < 1e-6, name


class _Copy(torch.autograd.Function):
    """Nothing forward, a sum backward."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class _Sum(torch.autograd.Function):
    """A sum forward, nothing backward."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Block(nn.Module):
    """Two layers, the first split by columns and the second by rows over a group; not split without one."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        first, second = torch.randn(6, 8) / 3, torch.randn(8, 6) / 3
        self.group = group
        if group is not None:
            rank, size = dist.get_rank(group), dist.get_world_size(group)
            first, second = first.chunk(size, dim=1)[rank], second.chunk(size, dim=0)[rank]
        self.first, self.second = nn.Parameter(first.clone()), nn.Parameter(second.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        apply: Any = (_Copy.apply, _Sum.apply)
        if self.group is None:
            return (inputs @ self.first).tanh() @ self.second
        hidden = (apply[0](inputs, self.group) @ self.first).tanh()
        return apply[1](hidden @ self.second, self.group)  # type: ignore[no-any-return]


def blocks(group: dist.ProcessGroup | None) -> list[nn.Module]:
    torch.manual_seed(4)
    return [Block(group), Block(group)]


def on_three_axes(schedule, num_pipelines):
    mesh = init_device_mesh("cpu", (num_pipelines, 2, 2), mesh_dim_names=("dp", "pp", "tp"))
    pipeline = Pipeline(
        blocks(mesh["tp"].get_group()),
        momentum,
        loss=F.cross_entropy,
        schedule=schedule,
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group(),
        timeout_s=50,
    )
    part = mesh["dp"].get_local_rank()
    for inputs, targets in batches(4):
        pipeline.step(inputs.chunk(num_pipelines)[part], targets.chunk(num_pipelines)[part])
        pipeline.drain()
    pipeline.close()
    return mesh["tp"].get_local_rank(), weights_of(pipeline.modules)


@pytest.mark.parametrize(("schedule", "num_pipelines"), [(Flush(2), 2), (PipeDream(), 1)], ids=str)
def test_stages_may_be_tensor_parallel_in_another_group(schedule, num_pipelines):
    stages = blocks(None)
    model = nn.Sequential(*stages)
    optimizer = momentum(list(model.parameters()))
    for inputs, targets in batches(4):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    for place, weights in run(4 * num_pipelines, on_three_axes, schedule, num_pipelines):
        for name, weight in weights.items():
            stage, parameter = name.split(".")
            whole = dict(stages[int(stage)].named_parameters())[parameter].detach()
            part = whole.chunk(2, dim=1 if parameter == "first" else 0)[place]
            assert (weight - part).abs().max() < 1e-5, name
