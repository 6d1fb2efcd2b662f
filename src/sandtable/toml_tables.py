"""TOML files: read one, check its tables, and report what is wrong with file, key, rule, value and remedy.

A table is a pydantic model derived from `TomlTable`. Field names are TOML keys, so each number carries its unit, and a
field's description completes the message when its value is wrong. Each room passes the error it raises.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from sandtable.errors import SandtableError

__all__ = [
    "Count",
    "Rate",
    "Share",
    "Speed",
    "Text",
    "TomlFile",
    "TomlTable",
    "broken_rule",
    "check_table",
    "did_you_mean",
    "load_table",
    "read_toml",
]

TomlFile = Path | Traversable

Count = Annotated[int, Field(ge=1)]
Speed = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]

Model = TypeVar("Model", bound=BaseModel)


class TomlTable(BaseModel):
    """Strict: an unknown key is an error, "8" is not 8, and infinity is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def load_table(file: TomlFile, model: type[Model], *, error: type[SandtableError]) -> Model:
    """Read the TOML document in `file` and check it against `model`."""
    return check_table(read_toml(file, error=error), model, file=file, error=error)


def read_toml(file: TomlFile, *, error: type[SandtableError]) -> dict[str, Any]:
    """Read the TOML document in `file`, without checking its tables."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{file}: the file must exist, but there is none; check the path") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{file}: the file must be readable UTF-8 text, but reading it gave: {problem}") from None
    except tomllib.TOMLDecodeError as problem:
        remedy = "correct the line; strings need quotes, and a table starts with [name]"
        raise error(f"{file}: the file must be valid TOML, but: {problem}; {remedy}") from None


def check_table(
    data: Mapping[str, Any], model: type[Model], *, file: TomlFile, error: type[SandtableError], within: str = ""
) -> Model:
    """Check `data` against `model`. `within` names the table that holds `data`, for the key in the message."""
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        lines = [_explain(details, model, within) for details in problem.errors()]
    raise error("\n".join(f"{file}: {line}" for line in lines))


def broken_rule(key: str, rule: str, value: object, remedy: str) -> PydanticCustomError:
    """Return the error for a rule that ties several keys together, broken at `key`; a validator raises it."""
    return PydanticCustomError("rule", "{text}", {"key": key, "text": f"must be {rule}, but got {value!r}; {remedy}"})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or nothing when no known word is near."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def _explain(details: ErrorDetails, model: type[BaseModel], within: str) -> str:
    """Explain one broken rule: `count must be greater than or equal to 1, but got 0; it is the number of ...`."""
    path = [str(part) for part in details["loc"]]
    if details["type"] == "rule":
        path += [details["ctx"]["key"]] if details["ctx"]["key"] else []
    key = ".".join([within, *path] if within else path)
    if details["type"] == "rule":
        return f"{key} {details['msg']}"
    fields, field = _find(model, path)
    if details["type"] == "extra_forbidden":
        return f"{key} must be a known key{did_you_mean(path[-1], fields)}; known here: {', '.join(fields)}"
    meaning = f"; it is {field.description}" if field and field.description else ""
    if details["type"] == "missing":
        return f"{key} must be given, but is missing{meaning}"
    return f"{key} must be {_rule(details['msg'])}, but got {details['input']!r}{meaning}"


def _rule(message: str) -> str:
    """Turn pydantic's `Input should be a valid integer` into the end of a sentence that begins with `<key> must be`."""
    for opening in ("Input should be ", "Input should "):
        message = message.removeprefix(opening)
    return "a table" if message.startswith("a valid dictionary") else message


def _find(model: type[BaseModel], path: list[str]) -> tuple[dict[str, FieldInfo], FieldInfo | None]:
    """Return the fields beside the last key of `path`, and the field that key names, if there is one."""
    fields = model.model_fields
    for part in path[:-1]:
        if part.isdigit():  # an entry of a list of tables
            continue
        inner = _inner(fields[part]) if part in fields else None
        if inner is None:
            return fields, fields.get(part)
        fields = inner.model_fields
    return fields, fields.get(path[-1])


def _inner(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that holds a table, optional or not, or a list of tables."""
    kinds = [field.annotation]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        kinds.extend(getattr(kind, "__args__", ()))
    return None
