"""Which `if` a number that was read decides: only those that skip or leave a round, and ask nobody else."""

import textwrap
from pathlib import Path

import pytest

from sandtable.check.decisions import choice_at


def choice(tmp_path: Path, body: str):
    """Return what the line with `item` or `isnan` decides, in a loop with this body."""
    script = tmp_path / "train.py"
    lines = ["for batch in loader:", *textwrap.indent(textwrap.dedent(body).strip(), "    ").splitlines(), "    work()"]
    script.write_text("\n".join(lines) + "\n")
    return choice_at(str(script), next(n for n, line in enumerate(lines, 1) if "item" in line or "isnan" in line))


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("if torch.isnan(loss).any():\n    continue", "continue"),
        ("if loss.item() < 0.1 and step > 5:\n    print(step)\n    break", "break"),
        ("value = loss.item()\nshow(value)\nif not math.isfinite(value):\n    continue", "continue"),
    ],
)
def test_a_number_decides_whether_a_round_is_skipped_or_left(tmp_path: Path, body: str, how: str):
    found = choice(tmp_path, body)
    assert found is not None
    assert found.how == how


@pytest.mark.parametrize(
    "body",
    [
        "if torch.isnan(loss):\n    print('nan')",
        "if torch.isnan(loss):\n    raise ValueError('nan')",
        "if agreed(loss.item() > 3):\n    break",
        "value = loss.item()\nvalue = mean_over_ranks(value)\nif value > 3:\n    break",
        "value = mean_over_ranks(loss.item())\nif value > 3:\n    break",
        "value = loss.item()\nif any_rank(value > 3):\n    break",
        "total += loss.item()",
    ],
)
def test_what_goes_on_or_asks_others_is_no_decision(tmp_path: Path, body: str):
    assert choice(tmp_path, body) is None
