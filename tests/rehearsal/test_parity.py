"""Parity: what many ranks compute is what one process computes, and a patch of one line shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable import Launcher, LaunchOptions
from sandtable.errors import ParityError
from sandtable.findings import Severity
from sandtable.rehearsal.parity import Parity, ParityOptions, check_parity, merged_arguments

SCRIPTS = Path(__file__).parent / "parity_scripts"
SMALL = {
    "dp_tp": "--layers 2 --hidden 32",
    "pipeline": "--hidden 16",
    "sequence_parallel": "--hidden 16",
    "wrapped": "--layers 1 --hidden 16",
}
BROADCAST = "dist.broadcast(parameter.data, src=0) if not is_sharded else None"
REDUCE_IN_BACKWARD = "        dist.all_reduce(gradient, group=ctx.group)\n"
REDUCE_OVER_DP = "            dist.all_reduce(parameter.grad, group=dp_group)\n"


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with on_shared_launcher() as shared:
        yield shared


class Checker:
    """Runs a script of this folder with some of its lines replaced."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher = launcher
        self._folder = folder

    def __call__(
        self,
        name: str,
        *args: str,
        patch: tuple[str, str] = ("", ""),
        ranks: int = 4,
        single: str = "",
        **options: float,
    ) -> Parity:
        text = (SCRIPTS / f"{name}.py").read_text()
        assert patch[0] in text
        script = self._folder / "train.py"
        script.write_text(text.replace(*patch, 1))
        parity = ParityOptions(shrink=SMALL[name], single=single, **options)  # type: ignore[arg-type]
        return check_parity(
            script,
            *args,
            nodes=1,
            parity=parity,
            options=LaunchOptions(ranks_per_node=ranks, launcher=self._launcher),
        )


@pytest.fixture
def check(launcher: Launcher, tmp_path: Path) -> Checker:
    return Checker(launcher, tmp_path)


def test_a_correct_tensor_and_data_parallel_script_with_dropout_is_silent(check: Checker):
    result = check("dp_tp", single="--tp 1")
    assert result.findings == (), "\n".join(map(str, result.findings))
    assert (result.num_parameters, result.num_streams, result.num_replicas) == (31, 2, 2)


def test_a_wrong_divisor_is_a_ratio(check: Checker):
    result = check("dp_tp", single="--tp 1", patch=("parameter.grad /= dp", "parameter.grad /= world"))
    (finding,) = result.findings
    assert finding.rule == "parity"
    assert finding.severity is Severity.ERROR
    assert "is 0.5 times the single-process gradient" in finding.message
    assert "divided by dp*tp instead of dp" in finding.message
    assert finding.ranks == (0, 1, 2, 3)
    assert all(evidence.line for evidence in finding.evidence[:3])


def test_a_divisor_of_tp_in_place_of_dp_is_a_ratio(check: Checker):
    result = check("dp_tp", ranks=8, single="--tp 1", patch=("parameter.grad /= dp", "parameter.grad /= args.tp"))
    (finding,) = result.findings
    assert "is 2.0 times the single-process gradient" in finding.message


def test_a_missing_reduction_over_tp_is_found_where_parts_add_up(check: Checker):
    result = check("dp_tp", single="--tp 1", patch=(REDUCE_IN_BACKWARD, "        pass\n"))
    (finding,) = result.findings
    assert finding.severity is Severity.ERROR
    assert finding.message.startswith("gradient of `layers.1.norm2.weight` (and 1 more) is only a part")
    assert "is a reduction over tp missing?" in finding.message


def test_a_missing_reduction_over_dp_is_the_gradient_of_own_samples(check: Checker):
    result = check(
        "dp_tp", single="--tp 1", patch=(REDUCE_OVER_DP + "            parameter.grad /= dp", "            pass")
    )
    (finding,) = result.findings
    assert "is that of each rank's own samples, not the mean over the 2 data-parallel ranks" in finding.message


def test_a_double_reduction_is_a_ratio(check: Checker):
    result = check("dp_tp", single="--tp 1", patch=(REDUCE_OVER_DP, 2 * REDUCE_OVER_DP))
    (finding,) = result.findings
    assert "is 2.0 times the single-process gradient" in finding.message
    twice = check("dp_tp", single="--tp 1", patch=(REDUCE_IN_BACKWARD, 2 * REDUCE_IN_BACKWARD))
    assert any("is 2.0 times the single-process gradient" in finding.message for finding in twice.findings)
    assert any("layers.1.norm2" in finding.message for finding in twice.findings)


def test_a_dropout_seed_shared_across_dp_is_a_warning(check: Checker):
    result = check("dp_tp", single="--tp 1", patch=("dropout_seed = 1234 + rank // args.tp", "dropout_seed = 1234"))
    (finding,) = result.findings
    assert finding.severity is Severity.WARNING
    assert "must draw different dropout masks" in finding.message
    assert finding.ranks == (0, 2)
    assert {evidence.line for evidence in finding.evidence} == {78, 79}


def test_sequence_parallelism_is_silent_unless_shared_parameters_are_not_reduced_over_tp(check: Checker):
    right = check("sequence_parallel", single="--tp 1")
    assert right.findings == (), "\n".join(map(str, right.findings))
    reduction = "        dist.all_reduce(parameter.grad, group=tp.get_group())\n"
    wrong = check("sequence_parallel", single="--tp 1", patch=(reduction, "        pass\n"))
    (finding,) = wrong.findings
    assert finding.message.startswith("gradient of `0.bias` (and 5 more) is only a part")


def test_stages_that_number_their_layers_from_zero_are_matched_in_order(check: Checker):
    single = "--pp 1 --micro-batches 1"
    right = check("pipeline", single=single)
    assert right.findings == (), "\n".join(map(str, right.findings))
    assert (right.num_parameters, right.num_streams) == (8, 2)
    wrong = check("pipeline", single=single, patch=(" / args.micro_batches\n", "\n"))
    (finding,) = wrong.findings
    assert "gradient of `0.0.weight` (and 7 more) is 2.0 times" in finding.message


def test_too_many_ranks_are_an_error(check: Checker):
    with pytest.raises(ParityError, match=r"at most 64 ranks, but got 128"):
        check_parity(SCRIPTS / "wrapped.py", nodes=16, options=LaunchOptions(ranks_per_node=8))


def test_a_fused_query_key_and_value_is_recognised_by_its_loss(check: Checker, tmp_path: Path, launcher: Launcher):
    fused = (SCRIPTS / "dp_tp.py").read_text()
    for old, new in (
        (
            "self.wq, self.wk, self.wv = (nn.Linear(hidden, hidden // tp) for _ in range(3))",
            "self.wide = nn.Linear(hidden, 3 * hidden // tp)",
        ),
        ("layer(tokens).view", "part.view"),
        ("for layer in (self.wq, self.wk, self.wv)", "for part in self.wide(tokens).chunk(3, -1)"),
        ('"wq", "wk", "wv"', '"wide"'),
        ("is_causal=True", "is_causal=True, dropout_p=0.1"),
    ):
        assert old in fused
        fused = fused.replace(old, new)
    script = tmp_path / "fused.py"
    script.write_text(fused)
    options = LaunchOptions(ranks_per_node=2, launcher=launcher)
    result = check_parity(
        script, nodes=1, parity=ParityOptions(shrink=SMALL["dp_tp"], single="--tp 1"), options=options
    )
    assert result.findings == (), "\n".join(map(str, result.findings))


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2", "fsdp1", "fsdp1-flat"])
def test_wrappers_of_torch_are_silent(check: Checker, wrapper: str):
    result = check("wrapped", "--wrap", wrapper, ranks=2)
    assert result.findings == (), "\n".join(map(str, result.findings))
    assert (result.num_parameters, result.num_streams, result.num_replicas) == (14, 2, 1)


def test_accumulated_and_half_precision_gradients_are_silent(check: Checker):
    result = check("wrapped", "--wrap", "fsdp2", "--micro-batch", "1", "--bf16", ranks=2)
    assert result.findings == (), "\n".join(map(str, result.findings))
    assert result.rtol == 0.06


def test_a_factor_that_clipping_hides_is_found(check: Checker):
    result = check("wrapped", "--micro-batch", "1", patch=(" / num_micro", ""), ranks=4)
    (finding,) = result.findings
    assert "is 0.25 times the single-process gradient" in finding.message


UNEQUAL_TOKENS = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples = torch.Generator().manual_seed(rank)
for _ in range(3):
    tokens, labels = (torch.randint(20, (4, 8), generator=samples) for _ in range(2))
    labels[:, 3 + 2 * rank :] = -100
    tokens, labels = tokens.cuda(), labels.cuda()
    count = (labels != -100).sum()
    dist.all_reduce(count)
    logits = model(tokens).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") * world / count
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_mean_over_all_tokens_is_a_note_and_with_a_wrong_factor_an_error(launcher: Launcher, tmp_path: Path):
    options = LaunchOptions(ranks_per_node=3, launcher=launcher)
    script = tmp_path / "train.py"
    script.write_text(UNEQUAL_TOKENS)
    (finding,) = check_parity(script, nodes=1, options=options).findings
    assert finding.severity is Severity.NOTE
    assert "with weights of 0.200, 0.333, 0.467" in finding.message
    script.write_text(UNEQUAL_TOKENS.replace(" * world / count", " / count"))
    (finding,) = check_parity(script, nodes=1, options=options).findings
    assert finding.severity is Severity.ERROR
    assert "is 0.333 times the single-process gradient" in finding.message


def test_experts_that_ranks_name_alike_cannot_be_compared(check: Checker):
    with pytest.raises(ParityError, match=r"`embedding.weight` differ on ranks 0 and 1"):
        check(
            "dp_tp",
            single="--tp 1",
            patch=("dist.broadcast(parameter.data, src=0) if not is_sharded else None", "pass"),
        )


def test_a_forward_around_ddp_is_the_gradient_of_own_samples(check: Checker):
    result = check("wrapped", patch=("model(batch", "model.module(batch"), ranks=2)
    assert [finding.severity for finding in result.findings] == [Severity.ERROR]
    assert "is that of each rank's own samples, not the mean over the 2" in result.findings[0].message


def test_a_run_that_fails_says_which_and_what_to_change(check: Checker):
    with pytest.raises(
        ParityError, match=r"must run with one rank, but it fails; make one process of it with --single"
    ):
        check("dp_tp", patch=("rank // args.tp]", "rank // args.tp] if world > 1 else 1 // 0"))


def test_arguments_take_the_place_of_those_of_the_same_name():
    arguments = ("train.py", "--layers", "48", "--hidden=512", "--fused", "model.dim=8")
    assert merged_arguments(arguments, ["--layers", "2", "--hidden", "64", "model.dim=2"]) == (
        "train.py",
        "--fused",
        "--layers",
        "2",
        "--hidden",
        "64",
        "model.dim=2",
    )
    assert merged_arguments(("--lr", "-0.1", "data"), ["--lr", "0.2"]) == ("data", "--lr", "0.2")


LARGE = """
import torch
model = torch.nn.Linear(6000, 6000, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 6000).cuda()).sum().backward()
optimizer.step()
"""


def test_a_model_that_was_not_shrunk_is_an_error(launcher: Launcher, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(LARGE)
    with pytest.raises(ParityError, match=r"at most 128 MiB .*, but this one holds 137 MiB; .* with --shrink"):
        check_parity(script, nodes=1, options=LaunchOptions(ranks_per_node=2, launcher=launcher))
