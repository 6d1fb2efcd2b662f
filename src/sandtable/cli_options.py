"""Options that commands share: what if a node were slow, links thinner, times noisy; and what only users know."""

from __future__ import annotations

from typing import Annotated

import typer

from sandtable.engine import WhatIf
from sandtable.errors import LaunchError

__all__ = [
    "Jitter",
    "LinkScale",
    "Price",
    "SamplesPerStep",
    "Seed",
    "SlowNode",
    "TokensPerStep",
    "what_if",
]

SlowNode = Annotated[
    list[str] | None,
    typer.Option("--slow-node", metavar="NODE=SPEED", help="what if node 17 ran at 80 %: 17=0.8 (may be repeated)"),
]
LinkScale = Annotated[
    list[str] | None,
    typer.Option(
        "--link-scale",
        metavar="LINKS=FACTOR",
        help="what if links were slower: inter=0.25; intra, inter or a tier's name (may be repeated)",
    ),
]
Jitter = Annotated[float, typer.Option(min=0.0, max=1.0, help="what if times varied by this share: 0.05")]
Seed = Annotated[int, typer.Option(min=0, help="seed of --jitter")]
TokensPerStep = Annotated[int | None, typer.Option(min=1, help="tokens in a step, for tokens per second")]
SamplesPerStep = Annotated[int | None, typer.Option(min=1, help="samples in a step, for samples per second")]
Price = Annotated[float | None, typer.Option(min=0.0, help="US dollars for one GPU for one hour")]


def what_if(slow_node: list[str] | None, link_scale: list[str] | None, jitter: float, seed: int) -> WhatIf:
    """The options as one object."""
    slow = {_number(name, "--slow-node"): speed for name, speed in _pairs(slow_node, "--slow-node", "17=0.8")}
    scale = dict(_pairs(link_scale, "--link-scale", "inter=0.25"))
    return WhatIf(slow_nodes=slow, link_scale=scale, jitter=jitter, seed=seed)


def _pairs(texts: list[str] | None, option: str, example: str) -> list[tuple[str, float]]:
    found = []
    for text in texts or ():
        name, sign, value = text.partition("=")
        try:
            found.append((name.strip(), float(value)))
        except ValueError:
            sign = ""
        if not sign or not name:
            raise LaunchError(
                f"{option} must be a name, = and a number, but got '{text}'; for example {option} {example}"
            )
    return found


def _number(name: str, option: str) -> int:
    if not name.isdigit():
        raise LaunchError(f"{option} must name a node by its number from 0, but got '{name}'; for example 17=0.8")
    return int(name)
