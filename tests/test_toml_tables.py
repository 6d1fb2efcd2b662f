"""TOML tables: a wrong file is reported with file, key, rule, value and remedy, as the error of the reading room."""

from pathlib import Path

import pytest
from pydantic import Field

from sandtable.errors import ClusterError, SandtableError, StudyError
from sandtable.toml_tables import Count, Share, TomlTable, did_you_mean, load_table


class Disk(TomlTable):
    """A table within a table."""

    size_gb: Count = Field(description="the size in GB, such as 500")
    used: Share = Field(default=1.0, description="the share in use")


class Machine(TomlTable):
    """A file with one inner table and a list of them."""

    disk: Disk = Field(description="the table [disk]")
    spares: list[Disk] = Field(default=[], description="the tables [[spares]]")


def load(folder: Path, text: str, *, error: type[SandtableError] = ClusterError) -> Machine:
    file = folder / "machine.toml"
    file.write_text(text, encoding="utf-8")
    return load_table(file, Machine, error=error)


def test_a_file_becomes_its_model(tmp_path: Path) -> None:
    assert load(tmp_path, "[disk]\nsize_gb = 5") == Machine(disk=Disk(size_gb=5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "disk must be given, but is missing; it is the table [disk]"),
        ("disk = 5", "disk must be a table"),
        ("[disk]\nsize_gb = 0", "disk.size_gb must be greater than or equal to 1, but got 0; it is the size in GB"),
        ('[disk]\nsize_gb = "5"', "disk.size_gb must be a valid integer, but got '5'"),
        ("[disk]\nsize = 5\nsize_gb = 5", "disk.size must be a known key; did you mean 'size_gb'?; known here"),
        ("[disk]\nsize_gb = 5\n[[spares]]\nsize_gb = 5\nused = 2.0", "spares.0.used must be less than or equal to 1"),
        ("[disk", "the file must be valid TOML"),
    ],
)
def test_a_mistake_is_reported_with_key_rule_value_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'machine.toml'}: {message}")


def test_every_mistake_has_a_line(tmp_path: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        load(tmp_path, "[disk]\nsize_gb = 0\nused = 0.0")
    assert len(str(caught.value).splitlines()) == 2


def test_each_room_gets_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError):
        load(tmp_path, "", error=StudyError)
    with pytest.raises(StudyError, match="the file must exist"):
        load_table(tmp_path / "none.toml", Machine, error=StudyError)


def test_only_near_words_are_suggested() -> None:
    assert did_you_mean("sise_gb", ["size_gb", "used"]) == "; did you mean 'size_gb'?"
    assert did_you_mean("colour", ["size_gb", "used"]) == ""
