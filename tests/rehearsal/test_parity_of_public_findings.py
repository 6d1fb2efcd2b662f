"""Parity finds mistakes that were published about Megatron-LM, each made again by changing one line of a small script.

docs/silent-errors.md names these tests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable import Launcher, LaunchOptions
from sandtable.errors import ParityError
from sandtable.rehearsal.parity import ParityOptions, check_parity

SCRIPTS = Path(__file__).parent / "parity_scripts"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published mistake: the line that makes it, and what the first finding says."""

    script: str
    right: str
    wrong: str
    message: str


PUBLISHED = {
    "label-smoothing-over-local-vocabulary": Published(
        script="vocabulary",
        right="ctx.smoothing, ctx.vocabulary = smoothing, size * tp.size",
        wrong="ctx.smoothing, ctx.vocabulary = smoothing, size",
        message="differs from the single-process gradient",
    ),
    "gathered-logits-in-a-vocabulary-parallel-loss": Published(
        script="vocabulary",
        right="self.tp, self.gathers_output = tp, False",
        wrong="self.tp, self.gathers_output = tp, True",
        message="differs from the single-process gradient",
    ),
    "recomputation-gathers-over-another-group": Published(
        script="vocabulary",
        right="self.group_of_recomputation = self.group",
        wrong="self.group_of_recomputation = self.dp_group",
        message="gradient of `projection` differs from the single-process gradient",
    ),
    "cross-attention-over-another-group": Published(
        script="vocabulary",
        right="self.group_of_cross_attention = self.group",
        wrong="self.group_of_cross_attention = self.dp_group",
        message="differs from the single-process gradient",
    ),
    "attention-sink-missing-from-the-norm": Published(
        script="vocabulary",
        right='"value", "sink", "out", "head"))\n        if',
        wrong='"value", "out", "head"))\n        if',
        message="times the single-process gradient: clipped by the norm of a part of the model?",
    ),
    "loss-not-scaled-by-context-parallelism": Published(
        script="context",
        right="    loss = loss * args.cp\n",
        wrong="",
        message="is 0.5 times the single-process gradient: averaged twice over dp, or divided by dp*tp instead of dp?",
    ),
    "targets-cut-by-another-group": Published(
        script="context",
        right="targets = text[1:].chunk(args.cp)[rank % args.cp]",
        wrong="targets = text[1:].chunk(args.cp)[rank // args.cp]",
        message="(and 6 more) differs from the single-process gradient",
    ),
    "tokens-cut-by-another-group": Published(
        script="context",
        right="tokens = text[:-1].chunk(args.cp)[rank % args.cp]",
        wrong="tokens = text[:-1].chunk(args.cp)[rank // args.cp]",
        message="(and 6 more) differs from the single-process gradient",
    ),
    "attention-gradients-of-other-ranks-dropped": Published(
        script="context",
        right="dist.reduce_scatter_tensor(out, gradient.contiguous(), group=ctx.group)",
        wrong="out.copy_(gradient.chunk(ctx.group.size())[ctx.group.rank()])",
        message="differs from the single-process gradient",
    ),
    "local-count-of-a-router-overwritten": Published(
        script="router",
        right="total = count.clone()",
        wrong="total = count",
        message="gradient of `norm.weight` (and 2 more) differs from the single-process gradient",
    ),
    "router-not-reduced-over-tp": Published(
        script="router",
        right="    for parameter in shared:\n        dist.all_reduce",
        wrong="    for parameter in shared[:2]:\n        dist.all_reduce",
        message="gradient of `router.weight` is only a part",
    ),
}
SHRINK = {
    "vocabulary": ("--hidden 16 --vocab 32", "--tp 1", 4),
    "context": ("--hidden 16", "--cp 1", 4),
    "router": ("--hidden 16", "", 2),
}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with on_shared_launcher() as shared:
        yield shared


def findings(launcher: Launcher, script: Path, kind: str) -> list[str]:
    shrink, single, ranks = SHRINK[kind]
    options = LaunchOptions(ranks_per_node=ranks, launcher=launcher)
    parity = ParityOptions(shrink=shrink, single=single)
    return [finding.message for finding in check_parity(script, nodes=1, parity=parity, options=options).findings]


@pytest.mark.parametrize("kind", SHRINK)
def test_the_correct_script_is_silent(launcher: Launcher, kind: str):
    assert findings(launcher, SCRIPTS / f"{kind}.py", kind) == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_mistake_is_found(launcher: Launcher, tmp_path: Path, name: str):
    published = PUBLISHED[name]
    text = (SCRIPTS / f"{published.script}.py").read_text()
    assert text.count(published.right) == 1
    script = tmp_path / "train.py"
    script.write_text(text.replace(published.right, published.wrong))
    found = findings(launcher, script, published.script)
    assert found, "nothing was found"
    assert published.message in found[0]


def test_routers_that_start_different_are_named(launcher: Launcher, tmp_path: Path):
    shared = "shared = [*model.norm.parameters(), *model.router.parameters()]"
    script = tmp_path / "train.py"
    script.write_text((SCRIPTS / "router.py").read_text().replace(shared, "shared = list(model.norm.parameters())"))
    with pytest.raises(ParityError, match=r"those of `router.weight` differ on ranks 0 and 1"):
        findings(launcher, script, "router")
