"""What a file of published rows may say. The field names are the TOML keys.

A file is one experiment that somebody measured: where it was published, on which machines, by which script it is
rehearsed, how a row's settings become the script's flags, and the rows. See validation/README.md for an example.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CsvRows", "RowFile", "RowTable", "ScoreTable"]

Text = Annotated[str, Field(min_length=1)]
Use = Literal["calibrate", "predict"]


class _Table(BaseModel):
    """Strict: an unknown key is an error, and "8" is not 8."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ScoreTable(_Table):
    """One quantity that was measured, and is predicted and scored under a name of its own."""

    quantity: Text = Field(description='what is compared, a name in sandtable.validation.quantities, such as "step_s"')
    limit_pct: float | None = Field(default=None, description="the mean absolute error in per cent that is aimed at")
    relative_to: Text | None = Field(
        default=None,
        description='the id of the row that counts as 100 per cent; {setting} is the scored row\'s: "{network}-1"',
    )
    use: Use | None = Field(default=None, description='"calibrate" or "predict" for all rows of this score')
    note: str = Field(default="", description="how the figure was read or worked out, if it was not simply printed")


class RowTable(BaseModel):
    """One published run: `id`, `measured`, `use`, and any number of settings of its own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: Text = Field(description="a name that no other row of the repository has")
    use: Use = Field(default="predict", description='"calibrate" or "predict"')
    measured: dict[str, float] = Field(description="the published figure of each score, such as {iter = 1.42}")
    note: str = Field(default="", description="anything worth knowing")

    @property
    def settings(self) -> dict[str, Any]:
        """What is this row's own."""
        return dict(self.model_extra or {})


class CsvRows(_Table):
    """Rows in a CSV file beside the TOML file. Lines that begin with # are comments."""

    file: Text = Field(description="the file's name, in the same directory")
    id: Text = Field(description='how a row is named after its settings, such as "h{hidden}-tp{tp}"')
    columns: dict[str, str] = Field(description="the setting that each column holds, by the column's heading")
    measured: dict[str, str] = Field(description="the heading of the column of each score")
    calibrate: tuple[str, ...] = Field(default=(), description="the ids of the rows used for calibration", strict=False)


class RowFile(_Table):
    """`validation/rows/<name>.toml`."""

    title: Text = Field(description="one line for people")
    source: Text = Field(description="where the figures were published")
    cluster: Text = Field(description="a machine of the catalogue, or a TOML file beside this one")
    script: Text = Field(description="the training script, in validation/scripts")
    steps: Annotated[int, Field(ge=1)] = Field(default=2, description="optimizer steps to capture")
    args: tuple[str, ...] = Field(default=(), description="flags that every row has", strict=False)
    flags: dict[str, str] = Field(description='the flag of each setting, such as hidden = "--hidden"')
    assumes: tuple[str, ...] = Field(default=(), description="what the publication does not say", strict=False)
    settings: dict[str, Any] = Field(default={}, description="settings that rows have unless they say otherwise")
    rank_within: tuple[str, ...] = Field(
        default=(), description="settings that competing rows share: the best of them is picked", strict=False
    )
    scores: dict[str, ScoreTable] = Field(description="what was measured, by the name under which it is reported")
    rows: tuple[RowTable, ...] = Field(default=(), description="the rows", strict=False)
    csv: CsvRows | None = Field(default=None, description="rows in a CSV file")
