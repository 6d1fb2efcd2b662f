"""The list of rules in the docs is that of their pages."""

import subprocess
import sys
from pathlib import Path

from sandtable.check import rule_pages

ROOT = Path(__file__).parents[2]


def test_the_docs_list_all_rules() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "list-rules"), "--check"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listing.returncode == 0, listing.stderr
    text = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    for rule, page in rule_pages().items():
        assert f"| [{rule}](../src/sandtable/check/pages/{rule}.md) | {page.sentence} |" in text


def test_rules_that_the_docs_name_exist() -> None:
    text = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    assert "ignore[host-read-in-loop, tiny-collectives]" in text
    assert {"host-read-in-loop", "tiny-collectives", "unequal-steps"} <= set(rule_pages())
