"""What every table of a catalogue file has in common. Field names are TOML keys, so each number carries its unit.

A table of numbers names its `source` and its `status`: `measured` (read off real hardware), `fitted` (chosen so that
predictions meet measurements) or `nominal` (published by the vendor, or worked out from such a number).
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = ["Count", "Facts", "Rate", "Share", "Speed", "Table", "Text", "broken"]

Count = Annotated[int, Field(ge=1)]
Speed = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]


class Table(BaseModel):
    """Strict: an unknown key is an error, "8" is not 8, and infinity is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Facts(Table):
    source: Text = Field(description="where the numbers of this table come from, such as a data sheet's title")
    status: Literal["measured", "fitted", "nominal"] = Field(description='"measured", "fitted" or "nominal"')


def broken(key: str, rule: str, value: object, remedy: str) -> PydanticCustomError:
    """A rule that ties several keys together, broken at `key`; raise it in a validator of the table."""
    return PydanticCustomError("rule", "{text}", {"key": key, "text": f"must be {rule}, but got {value!r}; {remedy}"})
