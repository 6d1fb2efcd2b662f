"""The schema of a file of published rows. The field names are the TOML keys.

A file is one published experiment: its source, the machines, the script that repeats it, the flags that
a row's settings become, and the rows. See validation/README.md for an example.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandtable.toml_tables import Text, TomlTable

__all__ = ["CsvRows", "RowFile", "RowTable", "ScoreTable"]

Use = Literal["calibrate", "predict"]


class ScoreTable(TomlTable):
    """One measured quantity, predicted and scored under its own name."""

    quantity: Text = Field(
        description='the quantity to compare, a name in sandtable.validation.quantities, such as "step_s"'
    )
    limit_pct: float | None = Field(default=None, description="the mean absolute error to aim at, in per cent")
    relative_to: Text | None = Field(
        default=None,
        description='the id of the row that counts as 100 per cent; {setting} is the scored row\'s: "{network}-1"',
    )
    use: Use | None = Field(default=None, description='"calibrate" or "predict" for all rows of this score')
    note: str = Field(default="", description="how the figure was read or computed, unless it was simply printed")


class RowTable(BaseModel):
    """One published run: `id`, `measured`, `use`, and any number of its own settings."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: Text = Field(description="a name, unique in the repository")
    use: Use = Field(default="predict", description='"calibrate" or "predict"')
    measured: dict[str, float] = Field(description="the published figure of each score, such as {iter = 1.42}")
    note: str = Field(default="", description="anything worth knowing")

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of this row alone."""
        return dict(self.model_extra or {})


class CsvRows(TomlTable):
    """Rows in a CSV file beside the TOML file. Lines that begin with # are comments."""

    file: Text = Field(description="the file's name, in the same directory")
    id: Text = Field(description='the template of row ids, filled with settings, such as "h{hidden}-tp{tp}"')
    columns: dict[str, str] = Field(description="the setting in each column, keyed by heading")
    measured: dict[str, str] = Field(description="the heading of the column of each score")
    calibrate: tuple[str, ...] = Field(default=(), description="the ids of the rows used for calibration", strict=False)


class RowFile(TomlTable):
    """`validation/rows/<name>.toml`."""

    title: Text = Field(description="one line for people")
    source: Text = Field(description="where the figures were published")
    cluster: Text = Field(description="a machine of the catalogue, or a TOML file beside this one")
    script: Text = Field(description="the training script, in validation/scripts")
    steps: Annotated[int, Field(ge=1)] = Field(default=2, description="optimizer steps to capture")
    args: tuple[str, ...] = Field(default=(), description="flags that every row has", strict=False)
    flags: dict[str, str] = Field(description='the flag of each setting, such as hidden = "--hidden"')
    assumes: tuple[str, ...] = Field(
        default=(), description="assumptions, where the publication gives no detail", strict=False
    )
    settings: dict[str, Any] = Field(default={}, description="settings of rows that do not override them")
    rank_within: tuple[str, ...] = Field(
        default=(), description="settings that competing rows share: the best of them is picked", strict=False
    )
    scores: dict[str, ScoreTable] = Field(
        description="the measured quantities, keyed by the name they are reported under"
    )
    rows: tuple[RowTable, ...] = Field(default=(), description="the rows", strict=False)
    csv: CsvRows | None = Field(default=None, description="rows in a CSV file")
