"""Parity where a single process makes other passes than the ranks: micro-batches, stages, and dropout in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable import Launcher, LaunchOptions
from sandtable.errors import ParityError
from sandtable.findings import Severity
from sandtable.rehearsal.parity import Parity, ParityOptions, check_parity

PIPELINE = (Path(__file__).parent / "parity_scripts" / "tied_pipeline.py").read_text()

ACCUMULATED = """
import argparse, contextlib, torch, torch.distributed as dist
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--batch", type=int, default=3)
args = parser.parse_args()
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.RMSNorm(16), nn.Dropout(0.1), nn.Linear(16, 4)).cuda()
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(1 + rank)
for _ in range(3):
    for micro in range(args.accumulate):
        inputs, targets = (torch.randn(args.batch, size).cuda() for size in (8, 4))
        with contextlib.nullcontext() if micro == args.accumulate - 1 else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets) / args.accumulate
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
"""

SHARES = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    batch = torch.randn(8, 12).chunk(world)[rank].cuda()
    loss = nn.functional.mse_loss(model(batch[:, :8]), batch[:, 8:]) / world
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
"""

SHARDED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(1 + rank)
for _ in range(3):
    inputs, targets = (torch.randn(4, size).cuda() for size in (8, 2))
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with on_shared_launcher() as shared:
        yield shared


class Checker:
    """Compares a script, with a part of it replaced, with a single process."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher = launcher
        self._script = folder / "train.py"

    def __call__(self, text: str, *patch: str, ranks: int = 2, single: str = "", shrink: str = "") -> Parity:
        if patch:
            right, wrong = patch
            assert text.count(right) == 1
            text = text.replace(right, wrong)
        self._script.write_text(text)
        options = LaunchOptions(ranks_per_node=ranks, launcher=self._launcher)
        return check_parity(self._script, nodes=1, parity=ParityOptions(single=single, shrink=shrink), options=options)


@pytest.fixture
def check(launcher: Launcher, tmp_path: Path) -> Checker:
    return Checker(launcher, tmp_path)


def accumulated(check: Checker, *patch: str) -> Parity:
    return check(ACCUMULATED, *patch, single="--accumulate 1 --batch 6")


def pipeline(check: Checker, *patch: str) -> Parity:
    return check(PIPELINE, *patch, ranks=4, single="--stages 1 --micro 1", shrink="--hidden 16")


def test_micro_batches_are_put_together_for_a_process_that_reads_them_at_once(check: Checker):
    result = accumulated(check)
    assert result.findings == (), "\n".join(map(str, result.findings))
    assert not result.has_dropout
    assert "without dropout" in result.describe()


def test_a_loss_divided_by_the_micro_batches_twice_is_a_ratio(check: Checker):
    (finding,) = accumulated(check, " / args.accumulate\n", " / args.accumulate / args.accumulate\n").findings
    assert "is 0.5 times the single-process gradient" in finding.message
    assert "divided by the micro-batches twice" in finding.message


def test_a_sum_after_clipping_is_a_ratio_and_no_mean_over_tokens(check: Checker):
    right = "    optimizer.step()\n"
    wrong = "    [dist.all_reduce(one.grad) for one in model.parameters()]\n" + right
    (finding,) = accumulated(check, right, wrong).findings
    assert finding.severity is Severity.ERROR
    assert "is 2.0 times the single-process gradient: reduced twice over dp" in finding.message


def test_masks_of_stages_are_those_of_other_layers(check: Checker):
    result = pipeline(check)
    assert result.findings == (), "\n".join(map(str, result.findings))
    assert not result.has_dropout


def test_a_shared_dropout_seed_is_found_though_dropout_is_switched_off(check: Checker):
    result = pipeline(check, "manual_seed(900 + me)", "manual_seed(900 + stage)")
    (finding,) = result.findings
    assert not result.has_dropout
    assert "must draw different dropout masks" in finding.message


def test_a_matrix_of_two_stages_that_is_not_reduced_is_named_with_its_copy(check: Checker):
    (finding,) = pipeline(check, "        dist.all_reduce(net.tied.grad, group=emb_group)\n", "        pass\n").findings
    assert finding.message.startswith("gradient of `wte.weight` is only a part: with that of `head`, a copy")
    assert "a reduction between the stages that share the weight missing?" in finding.message


def test_a_matrix_of_two_stages_that_is_reduced_twice_is_no_divisor_of_dp(check: Checker):
    reduction = "        dist.all_reduce(net.tied.grad, group=emb_group)\n"
    (finding,) = pipeline(check, reduction, 2 * reduction).findings
    assert finding.message.endswith("2.0 times the single-process gradient: a group of 2 ranks counted once too often?")


def test_a_single_element_of_a_shard_is_no_gradient_of_own_samples(check: Checker):
    (finding,) = check(SHARDED, "loss.backward()", "(loss / world).backward()").findings
    assert "(and 3 more) is 0.5 times the single-process gradient: averaged twice over dp" in finding.message


def test_updates_without_gradients_are_an_error(check: Checker):
    with pytest.raises(ParityError, match=r"no parameter of rank 0 has one when the optimizer steps"):
        check(SHARDED, "    loss.backward()", "    model.set_requires_gradient_sync(False)\n    loss.backward()")


def test_shares_of_one_batch_that_are_not_reduced_are_those_of_own_samples(check: Checker):
    assert check(SHARES).findings == ()
    (finding,) = check(SHARES, "dist.all_reduce(parameter.grad)", "pass").findings
    assert "(and 3 more) is that of each rank's own samples, not the mean over the 2" in finding.message
