"""Options as data: a command's options are the fields of a frozen dataclass, which its function receives."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import typer

from sandtable.engine import WhatIf
from sandtable.errors import LaunchError

__all__ = ["Command", "WhatIfOptions", "parse_ranks"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[T]):
    """A command whose function takes its options as one object. Options in `ignored` are accepted and dropped."""

    name: str
    function: Callable[[T], None]
    options: type[T]
    ignored: Mapping[str, Any] = field(default_factory=dict)

    def add_to(self, app: typer.Typer, **settings: Any) -> None:
        """Register the command; `settings` are those of `typer.Typer.command`."""
        hints = get_type_hints(self.options, include_extras=True)
        defaults = {option.name: _default(option) for option in _own_fields_first(self.options)}
        annotations = {name: hints[name] for name in defaults} | dict(self.ignored)
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation)
            for name, annotation in annotations.items()
        ]

        def call(**values: Any) -> None:
            self.function(self.options(**{name: values[name] for name in defaults}))

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = annotations
        call.__doc__ = self.function.__doc__
        app.command(self.name, **settings)(call)


def _own_fields_first(options: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the fields as --help lists them: a command's own options before those it shares."""
    fields = {option.name: option for option in dataclasses.fields(options)}
    order = dict.fromkeys(name for owner in options.__mro__ for name in vars(owner).get("__annotations__", ()))
    return [fields[name] for name in order if name in fields]


def _default(option: dataclasses.Field[Any]) -> Any:
    return inspect.Parameter.empty if option.default is dataclasses.MISSING else option.default


@dataclass(frozen=True, kw_only=True)
class WhatIfOptions:
    """Options of every command that simulates: what if a node were slow, links thinner, times noisy?"""

    slow_node: Annotated[
        list[str] | None,
        typer.Option("--slow-node", metavar="NODE=SPEED", help="what if node 17 ran at 80 %: 17=0.8 (repeatable)"),
    ] = None
    link_scale: Annotated[
        list[str] | None,
        typer.Option(
            "--link-scale",
            metavar="LINKS=FACTOR",
            help="what if links were slower: inter=0.25; intra, inter or a tier's name (repeatable)",
        ),
    ] = None
    jitter: Annotated[float, typer.Option(min=0.0, max=1.0, help="what if times varied by this share: 0.05")] = 0.0
    seed: Annotated[int, typer.Option(min=0, help="seed of --jitter")] = 0

    @property
    def what_if(self) -> WhatIf:
        """The options as the engine takes them."""
        slow_nodes = {_node(name): speed for name, speed in _pairs(self.slow_node, "--slow-node", "17=0.8")}
        link_scale = dict(_pairs(self.link_scale, "--link-scale", "inter=0.25"))
        return WhatIf(slow_nodes=slow_nodes, link_scale=link_scale, jitter=self.jitter, seed=self.seed)


def parse_ranks(text: str, *, example: str) -> tuple[int, ...]:
    """Parse a list of ranks such as `0,7,12`; `example` is what the error message suggests."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise LaunchError(f"--ranks must be {example}, but got '{text}'; separate rank numbers with commas")
    return tuple(int(part) for part in parts)


def _pairs(texts: Sequence[str] | None, option: str, example: str) -> list[tuple[str, float]]:
    pairs = []
    for text in texts or ():
        name, _, value = text.partition("=")
        try:
            pairs.append((name.strip(), float(value)))
        except ValueError:
            name = ""
        if not name.strip():
            raise LaunchError(
                f"{option} must be a name, = and a number, but got '{text}'; for example {option} {example}"
            )
    return pairs


def _node(name: str) -> int:
    if not name.isdigit():
        raise LaunchError(f"--slow-node must name a node by its number from 0, but got '{name}'; for example 17=0.8")
    return int(name)
