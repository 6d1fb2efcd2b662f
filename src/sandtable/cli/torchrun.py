"""torchrun's options that mean nothing without a network: `sandtable run` accepts them and ignores their values."""

from __future__ import annotations

from typing import Annotated, Any

import typer

__all__ = ["ignored_options"]

_IGNORED = {
    "rdzv-backend": "",
    "rdzv-endpoint": "",
    "rdzv-id": "",
    "rdzv-conf": "",
    "max-restarts": "",
    "monitor-interval": "",
    "start-method": "",
    "event-log-handler": "",
    "logs-specs": "",
    "role": "",
    "log-dir": "",
    "redirects": "-r",
    "tee": "-t",
    "local-ranks-filter": "",
    "node-rank": "",
    "master-addr": "",
    "master-port": "",
    "local-addr": "",
}
"""Long name, and short form if there is one. Each takes a value."""


def ignored_options() -> dict[str, Any]:
    """Return the options as annotations for the parser, each in both spellings (`--rdzv-id`, `--rdzv_id`)."""
    options: dict[str, Any] = {}
    for name, short in _IGNORED.items():
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}", *([short] if short else ())))
        options[name.replace("-", "_")] = Annotated[str | None, typer.Option(*spellings, hidden=True)]
    options["standalone"] = Annotated[bool | None, typer.Option("--standalone", help="accepted, as by torchrun")]
    return options
