"""torchrun's options that `sandtable run script.py` accepts without using their values."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandtable.launch import OTHER_OPTIONS

__all__ = ["ignored_options"]


def ignored_options() -> dict[str, Any]:
    """Return the options as annotations for the parser, each in both spellings (`--rdzv-id`, `--rdzv_id`)."""
    options: dict[str, Any] = {}
    for name, short in OTHER_OPTIONS.items():
        spellings = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}", *([short] if short else ())))
        options[name] = Annotated[str | None, typer.Option(*spellings, hidden=True)]
    options["standalone"] = Annotated[bool | None, typer.Option("--standalone", help="accepted, as by torchrun")]
    return options
