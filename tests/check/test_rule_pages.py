"""Every rule has a page, and every page the same parts."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandtable.check import RULES, explain, rule_pages
from sandtable.errors import LaunchError

SOURCES = Path(__file__).parents[2] / "src" / "sandtable"
PARTS = ["What happens", "The smallest script", "The fix", "When it is not a mistake"]


def named_rules() -> set[str]:
    """Return the names that source code gives to the rules of findings."""
    names = set(RULES)
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                values = [word.value for word in node.keywords if word.arg == "rule"]
                names |= {str(value.value) for value in values if isinstance(value, ast.Constant)}
    return names


def trees() -> Iterator[ast.Module]:
    for file in SOURCES.rglob("*.py"):
        yield ast.parse(file.read_text(encoding="utf-8"))


def test_every_rule_has_a_page() -> None:
    assert named_rules() <= set(rule_pages())


def test_every_page_has_a_rule() -> None:
    words = {node.value for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert set(rule_pages()) <= words


@pytest.mark.parametrize("page", rule_pages().values(), ids=lambda page: page.rule)
def test_a_page_has_a_title_a_sentence_and_four_parts(page) -> None:
    lines = page.text.splitlines()
    assert lines[0] == f"# {page.rule}"
    assert page.sentence.endswith(".")
    assert page.sentence == " ".join(page.sentence.split())
    assert re.findall(r"^## (.*)$", page.text, re.MULTILINE) == PARTS
    assert page.text.count("```") % 2 == 0


def test_python_on_a_page_can_be_read() -> None:
    for page in rule_pages().values():
        for block in re.findall(r"^```python\n(.*?)^```", page.text, re.MULTILINE | re.DOTALL):
            ast.parse(textwrap.dedent(block))


def test_an_unknown_rule_is_an_error_that_names_a_near_one() -> None:
    assert explain("deadlock-cycle").rule == "deadlock-cycle"
    with pytest.raises(LaunchError, match="did you mean deadlock-cycle"):
        explain("deadlockcycle")
    with pytest.raises(LaunchError, match="--rules"):
        explain("xyzzy")
