"""docs/silent-errors.md: rows that say "finds" name a script that shows it, and the counts are those of the rows."""

import re
from pathlib import Path

import pytest
from tests.check.corpus_case import cases
from tests.rehearsal.test_parity_of_public_findings import PUBLISHED

TEXT = (Path(__file__).parents[2] / "docs" / "silent-errors.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^##+ (.+)$", flags=re.MULTILINE)


def rows(section: str) -> list[list[str]]:
    """Return the rows of the table of a section, without its head."""
    parts = SECTION.split(TEXT)
    text = parts[parts.index(section) + 1]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


TRAINCHECK = rows("TrainCheck's list")
MEGATRON = rows("Findings in Megatron-LM")
REPORTS = rows("Reports of the kind that TTrace finds")
FOUND = [row for row in (*TRAINCHECK, *MEGATRON, *REPORTS) if row[-2].startswith("finds")]


@pytest.mark.parametrize("row", FOUND, ids=lambda row: row[0])
def test_a_row_that_finds_names_a_script_with_its_rule(row: list[str]):
    rule = re.findall(r"`([^`]+)`", row[-2])[0]
    kind, name = re.fullmatch(r"(corpus|test) `([^`]+)`", row[-1]).groups()  # type: ignore[union-attr]
    if kind == "corpus":
        assert rule in next(case.rules for case in cases() if case.name == name)
    else:
        assert rule == "parity"
        assert name in PUBLISHED


def test_every_other_row_gives_a_reason():
    others = [row for row in (*TRAINCHECK, *MEGATRON, *REPORTS) if row not in FOUND]
    assert all(row[-2].startswith("no: ") and not row[-1] for row in others)


def test_the_counts_are_those_of_the_rows():
    def count(table: list[list[str]]) -> str:
        return f"{sum(row in FOUND for row in table)} of {len(table)}"

    assert (len(TRAINCHECK), len(MEGATRON)) == (18, 13)
    assert f"{count(TRAINCHECK).replace(' of ', ' of the ')} errors of TrainCheck's list" in TEXT
    assert f"{count(MEGATRON).replace(' of ', ' of the ')} findings in Megatron-LM" in TEXT
    assert f"{count(REPORTS)} public reports" in TEXT


def test_every_published_mistake_has_its_row():
    assert {name for row in FOUND for name in re.findall(r"^test `([^`]+)`", row[-1])} == set(PUBLISHED)
