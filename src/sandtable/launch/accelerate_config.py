"""The configuration file that `accelerate config` writes: YAML, or JSON."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandtable.errors import LaunchError

__all__ = ["AccelerateConfig", "default_config_file", "read_config"]

_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
"""Tables whose keys may leave out the prefix of the option they stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateConfig:
    """What the file says: `kind` is the distributed type, `tables` are groups of options such as fsdp_config."""

    kind: str
    options: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]

    def table_options(self) -> Iterator[tuple[str, Any]]:
        """Yield every option of every table, by the name it has on the command line."""
        for table, options in self.tables.items():
            prefix = _PREFIXES.get(table, "")
            for key, value in options.items():
                yield key if key.startswith(prefix) else prefix + key, value


def default_config_file(variables: Mapping[str, str]) -> Path:
    """Return where `accelerate config` puts the file."""
    cache = Path(variables.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    home = Path(variables.get("HF_HOME", cache / "huggingface")).expanduser()
    return home / "accelerate" / "default_config.yaml"


def read_config(file: Path) -> AccelerateConfig:
    """Read the file as Accelerate does."""
    content = _content(file)
    place = content.pop("compute_environment", "LOCAL_MACHINE")
    if place != "LOCAL_MACHINE":
        raise LaunchError(
            f"compute_environment must be LOCAL_MACHINE, but got {place} in {file}; rehearse the script alone"
        )
    if "distributed_type" not in content:
        raise LaunchError(f"distributed_type must be in {file}, but is not; write the file with `accelerate config`")
    kind = str(content.pop("distributed_type"))
    content.setdefault("num_processes", 1 if kind == "NO" else -1)
    if content.pop("fp16", False):
        content.setdefault("mixed_precision", "fp16")
    backend = content.pop("dynamo_backend", "NO")
    if backend != "NO":
        content["dynamo_config"] = {"dynamo_backend": backend}
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    options = {name: value for name, value in content.items() if name not in tables and value is not None}
    return AccelerateConfig(kind=kind, options=options, tables=tables)


def _content(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise LaunchError(
            f"the configuration must be readable, but '{file}' is not ({error.strerror}); check --config_file"
        ) from None
    content: object
    if file.suffix == ".json":
        content = _parsed(file, json.loads, text, ValueError)
    else:
        try:
            yaml = importlib.import_module("yaml")
        except ImportError:
            raise LaunchError(
                f"PyYAML must be installed to read {file}, but is not; run pip install pyyaml, or use JSON"
            ) from None
        content = _parsed(file, yaml.safe_load, text, yaml.YAMLError)
    if not isinstance(content, dict):
        raise LaunchError(
            f"the configuration must be a table of options, but {file} is not; write it with `accelerate config`"
        )
    return content


def _parsed(file: Path, parse: Any, text: str, problem: type[Exception]) -> object:
    try:
        return parse(text)
    except problem as error:
        raise LaunchError(f"the configuration must be valid, but {file} is not: {error}; correct it") from None
