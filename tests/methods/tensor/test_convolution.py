"""Convolution nets split by channels: results, traffic, pairing, and errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.tensor.models import Outcome, gather
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.data import DataParallel
from sandtable.methods.tensor import ColumnParallelConv, RowParallelConv, TensorGroup, TensorParallel, find_plan
from sandtable.methods.tensor.channel_plan import pair_up


class BasicBlock(nn.Module):
    """Its parts have torchvision's names."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(inside)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A block of ResNeXt: the second convolution is grouped."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, 8, 1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, padding=1, groups=4), nn.BatchNorm2d(16)
        self.conv3, self.bn3 = nn.Conv2d(16, width, 1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(inside)) + x)


class ResNet(nn.Module):
    def __init__(self, *blocks: nn.Module, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(*blocks)
        self.fc = nn.Linear(outputs, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer1(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))
        return logits


def _vgg() -> nn.Sequential:
    features = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, stride=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 8, 3, dilation=2, padding=2),
        nn.ReLU(),
        nn.Dropout(0.0),
        nn.Flatten(),
        nn.Linear(8 * 2 * 2, 12),
    )
    return nn.Sequential(features, nn.Sequential(nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)))


def _mobile() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 16, 1),
        nn.GroupNorm(4, 16),
        nn.PReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.InstanceNorm2d(16, affine=True),
        nn.PReLU(16),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 4, 1, bias=False),
    )


def _line() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(2), nn.Conv1d(4, 8, 5, padding=2, padding_mode="circular"), nn.Tanh(), nn.Conv1d(8, 4, 3)
    )


def _volume() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(2, (2, 4)), nn.Conv3d(4, 8, (1, 3, 3), padding="valid"), nn.SiLU(), nn.Conv3d(8, 4, 1)
    )


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "vgg": _vgg,
    "mobile": _mobile,
    "line": _line,
    "volume": _volume,
    "resnet": lambda: ResNet(BasicBlock(8, 16), BasicBlock(16, 8), outputs=8),
    "resnext": lambda: ResNet(Bottleneck(8), Bottleneck(8), outputs=8),
}
_PAIRS = {"vgg": 3, "mobile": 1, "line": 1, "volume": 1, "resnet": 2, "resnext": 2}


def _make(kind: str) -> nn.Module:
    torch.manual_seed(5)
    return _MODELS[kind]().double()


def _images(count: int = 4) -> Tensor:
    return torch.randn(count, 4, 8, 8, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def _forth_and_back(kind: str, is_split: bool) -> Outcome:
    model, inputs = _make(kind), _images().requires_grad_()
    parallel = TensorParallel(model) if is_split else None
    outputs = model(inputs)
    forward = {} if parallel is None else dict(parallel.traffic.calls)
    outputs.square().sum().backward()
    both = {} if parallel is None else dict(parallel.traffic.calls)
    state = model.state_dict() if parallel is None else parallel.full_state_dict()
    notes = {"outputs": outputs.detach(), "inputs": inputs.grad, "state": state, "forward": forward, "both": both}
    return gather(model, parallel, [], **notes)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", list(_MODELS))
def test_a_split_net_computes_as_the_unsplit_one(kind, world):
    alone = _forth_and_back(kind, False)
    for outcome in run(world, _forth_and_back, kind, True):
        outcome.check_equal(alone)
        for note in ("outputs", "inputs", "state"):  # the state has running means and variances
            torch.testing.assert_close(outcome.notes[note], alone.notes[note], rtol=0, atol=1e-9)
        # One all-reduce a pair each way; a slope that all channels share has its gradient summed.
        assert outcome.notes["forward"] == {"all-reduce": _PAIRS[kind]}
        assert outcome.notes["both"] == {"all-reduce": 2 * _PAIRS[kind] + (kind == "mobile")}


def _hold(kind: str) -> tuple[int, int]:
    model = _make(kind)
    whole = sum(each.numel() for each in model.parameters())
    TensorParallel(model)
    return sum(each.numel() for each in model.parameters()), whole


def test_a_rank_holds_its_share_of_the_kernels():
    for held, whole in run(4, _hold, "vgg"):
        assert held < 0.3 * whole


def _predict_one() -> Tensor:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 4, 1)).double()
    TensorParallel(model, plan={"0": "column", "2": "row"})
    image = _images(1)[0]
    torch.testing.assert_close(model(image), model(image.unsqueeze(0)).squeeze(0))
    loaded: Tensor = model(image).detach()
    return loaded


def test_a_single_image_without_a_batch_is_taken():
    first, second = run(2, _predict_one)
    torch.testing.assert_close(first, second)


def _train(on_mesh: bool) -> list[Tensor]:
    """Train two replicas with half of the images each, the channels of each split over two ranks."""
    model, images = _make("mobile"), _images(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    split = replicas = None
    if on_mesh:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        split = TensorParallel(model, group=mesh["tp"].get_group())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        replicas = DataParallel(model, optimizer, group=mesh["dp"].get_group())
        images = images.chunk(2)[mesh["dp"].get_local_rank()]
    for _ in range(3):
        model(images).square().mean().backward()
        if replicas is None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            replicas.step()
    state = model.state_dict() if split is None else split.full_state_dict()
    return list(state.values())


def test_batch_and_channels_split_together_train_as_one_process():
    alone = _train(False)
    for state in run(4, _train, True):
        for mine, theirs in zip(state, alone, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


def test_layers_in_a_row_are_taken_in_pairs():
    plan = find_plan(_vgg())
    assert plan.styles == {
        ".0.0": "column",
        ".0.1": "channels",
        ".0.4": "row",
        ".0.6": "column",
        ".0.10": "row",
        ".1.1": "column",
        ".1.3": "row",
    }
    # A norm over all channels, and a concatenation that nobody sees, have no pair around them.
    assert pair_up(nn.Sequential(nn.Conv2d(4, 8, 1), nn.LocalResponseNorm(2), nn.Conv2d(8, 4, 1))) is None
    assert pair_up(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))) is None
    assert pair_up(nn.ModuleList([nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)])) is None


def _refusals() -> list[str]:
    group = TensorGroup()
    cases: list[Callable[[], Any]] = [
        lambda: RowParallelConv(nn.Conv2d(4, 4, 1, groups=2), group, name="deep"),
        lambda: ColumnParallelConv(nn.ConvTranspose2d(4, 4, 1), group, name="up"),
        lambda: ColumnParallelConv(nn.Conv2d(4, 6, 1), group, name="odd"),
        lambda: ColumnParallelConv(nn.Conv2d(6, 12, 1, groups=6), group, name="groups"),
        lambda: TensorParallel(
            nn.Sequential(nn.Conv2d(4, 8, 1), nn.LayerNorm(8)), plan={"0": "column", "1": "channels"}
        ),
        lambda: TensorParallel(nn.Sequential(nn.SyncBatchNorm(8)), plan={"0": "channels"}),
        lambda: TensorParallel(nn.Sequential(nn.GroupNorm(2, 8)), plan={"0": "channels"}),
    ]
    return [_message(case) for case in cases]


def _message(make: Callable[[], Any]) -> str:
    with pytest.raises(MethodError) as refused:
        make()
    return str(refused.value)


def test_what_cannot_be_split_by_channels_is_refused_with_the_remedy():
    deep, up, odd, groups, layer, sync, few = run(4, _refusals)[0]
    assert 'deep has 2 groups that it sums separately; give it the style "channels"' in deep
    assert "must be an nn.Conv1d, Conv2d or Conv3d, but up is a ConvTranspose2d" in up
    assert (
        "the number of ranks (4) must divide the output channels of odd, but got 6; try a group of 1, 2, 3 or 6" in odd
    )
    assert "must divide the groups of groups, but got 6" in groups
    assert "must treat channels separately" in layer
    assert "1 is a LayerNorm" in layer
    assert "SyncBatchNorm(process_group=...)" in sync
    assert "must divide the groups of 0, but got 2" in few
