"""TOML text in, a checked model out; or a ClusterError with the file, the key, the rule, the value and the remedy."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sandtable.errors import ClusterError

__all__ = ["File", "check", "did_you_mean", "read"]

File = Path | Traversable

Model = TypeVar("Model", bound=BaseModel)


def read(file: File) -> dict[str, Any]:
    """The TOML document in `file`, not yet checked."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ClusterError(f"{file}: the file must exist, but there is none; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{file}: the file must be readable UTF-8 text, but reading it gave: {error}") from None
    except tomllib.TOMLDecodeError as error:
        remedy = "correct the line; strings need quotes, and a table starts with [name]"
        raise ClusterError(f"{file}: the file must be valid TOML, but: {error}; {remedy}") from None


def check(data: Mapping[str, Any], model: type[Model], *, file: File, within: str = "") -> Model:
    """`data` as a `model`. `within` is the table that `data` was found in, for the key in the message."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [_explain(details, model, within) for details in error.errors()]
    raise ClusterError("\n".join(f"{file}: {line}" for line in lines))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no known word is near."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def _explain(details: ErrorDetails, model: type[BaseModel], within: str) -> str:
    """One broken rule: `gpus_per_node must be greater than or equal to 1, but got 0; it is the number of ...`."""
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
    """Pydantic's `Input should be a valid integer` as the end of a sentence that begins with `<key> must be`."""
    for opening in ("Input should be ", "Input should "):
        message = message.removeprefix(opening)
    return "a table" if message.startswith("a valid dictionary") else message


def _find(model: type[BaseModel], path: list[str]) -> tuple[dict[str, FieldInfo], FieldInfo | None]:
    """The fields beside the last key of `path`, and the field that key names, if it is one."""
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
    """The model of a field that holds a table, optional or not, or a list of tables."""
    kinds = [field.annotation]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        kinds.extend(getattr(kind, "__args__", ()))
    return None
