"""Settings files: JSON, YAML and TOML files of which a search changes some keys, in a copy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from sandtable.errors import PlanError
from sandtable.planner.expression import Value

__all__ = ["write_with_settings"]


def write_with_settings(file: Path, settings: Mapping[str, Value], directory: Path) -> Path:
    """Write a copy of `file` with these keys set into `directory`, and return its path.

    The name of the copy has a digest of its content, so equal settings are one file.
    """
    read, write = _format(file)
    try:
        content = read(file.read_text(encoding="utf-8"))
    except Exception as error:
        raise PlanError(f"{file} must be a file of its kind, but cannot be read: {error}") from error
    for key, value in settings.items():
        _set(content, key, value, file)
    text = write(content)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    directory.mkdir(parents=True, exist_ok=True)
    copy = directory.resolve() / f"{file.stem}-{digest}{file.suffix}"
    copy.write_text(text, encoding="utf-8")
    return copy


def _set(content: Any, key: str, value: Value, file: Path) -> None:
    """Set a key whose levels are separated by dots; levels that are missing are made."""
    *levels, last = key.split(".")
    place = content
    for level in levels:
        if isinstance(place, MutableMapping):
            place = place.setdefault(level, {})
    if not isinstance(place, MutableMapping):
        raise PlanError(f"the key {key} must lead through tables of {file}, but something in between is none")
    place[last] = value


def _format(file: Path) -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    match file.suffix:
        case ".json":
            return json.loads, lambda content: json.dumps(content, indent=2)
        case ".toml":
            tomlkit = _library("tomlkit")
            return tomlkit.parse, tomlkit.dumps
        case ".yaml" | ".yml":
            yaml = _library("yaml", package="pyyaml")
            return yaml.safe_load, lambda content: yaml.safe_dump(content, sort_keys=False)
    raise PlanError(f"a file with settings must be .json, .yaml or .toml, but got {file}; use flags in its place")


def _library(name: str, package: str = "") -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PlanError(
            f"this file needs the package {package or name}, which is not installed; pip install {package or name}"
        ) from error
