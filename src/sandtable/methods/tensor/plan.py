"""Plan: which layers of a model are split, and how.

    Plan({"mlp.up": "column", "mlp.down": "row", "attn": "heads", "attn.qkv": Column(parts=3), "attn.out": "row",
          "embedding": "vocabulary", "head": "vocabulary"}, sequence=("blocks.*", "norm"))

A pattern is compared with the end of a module's name, name by name: "mlp.up" stands for `blocks.0.mlp.up` and for
`encoder.mlp.up`; `*` stands for any one name, "h*" for one that begins with h. One that begins with a dot is compared
with the whole name: ".0" is the first module of an `nn.Sequential`, and of none inside it. What no pattern names stays
whole: every rank does it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.styles import Channels, Column, Heads, Row, Style, Vocabulary

__all__ = ["Plan", "matches"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Styles by pattern; `sequence`: the modules between which tokens are shared out in sequence parallelism.

    Tokens are split before the first module that `sequence` names and put together after the last, in the order in
    which the model has them. With `is_strict` a pattern that fits no module is an error.
    """

    styles: Mapping[str, str | Style]
    sequence: tuple[str, ...] = field(default=(), kw_only=True)
    is_strict: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        for pattern, style in self.styles.items():
            if not isinstance(style, Style) and style not in _STYLES:
                raise MethodError(
                    f"a style must be {_listed()} or a Style such as Column(parts=3), but {pattern!r} has {style!r}"
                )

    def without(self, *patterns: str) -> Plan:
        """The same, with what these patterns name left whole."""
        for pattern in patterns:
            if pattern not in self.styles:
                raise MethodError(
                    f"a pattern to leave out must be in the plan, but {pattern!r} is not; it has {sorted(self.styles)}"
                )
        return replace(self, styles={key: style for key, style in self.styles.items() if key not in patterns})

    def choose(self, model: nn.Module) -> dict[str, Style]:
        """The style of each module that has one, by its name, in the model's order."""
        chosen: dict[str, Style] = {}
        for name in _names(model):
            fitting = [pattern for pattern in self.styles if matches(pattern, name)]
            styles = {as_style(self.styles[pattern]) for pattern in fitting}
            if len(styles) > 1:
                raise MethodError(
                    f"a module must have one style, but {name} fits {fitting}; write a longer pattern for one of them"
                )
            if styles:
                chosen[name] = styles.pop()
        self._check_all_fit(self.styles, model)
        return chosen

    def modules_of_sequence(self, model: nn.Module) -> list[str]:
        """Names of the modules whose tokens are shared out, in the model's order."""
        self._check_all_fit(self.sequence, model)
        return [name for name in _names(model) if any(matches(pattern, name) for pattern in self.sequence)]

    def _check_all_fit(self, patterns: Iterable[str], model: nn.Module) -> None:
        names = _names(model)
        unused = [pattern for pattern in patterns if not any(matches(pattern, name) for name in names)]
        if unused and self.is_strict:
            raise MethodError(
                f"every pattern of a plan must fit a module, but {unused} fit none; print(model) shows the names"
            )


def matches(pattern: str, name: str) -> bool:
    """Whether the last names of a dotted name are those of the pattern; all of them, if it begins with a dot."""
    wanted, names = pattern.removeprefix(".").split("."), name.split(".")
    if pattern.startswith(".") and len(names) != len(wanted):
        return False
    tail = names[-len(wanted) :]
    return len(tail) == len(wanted) and all(map(fnmatchcase, tail, wanted))


def as_style(style: str | Style) -> Style:
    return _STYLES[style] if isinstance(style, str) else style


def _names(model: nn.Module) -> list[str]:
    """Of all modules but the model itself, which has no parent to be replaced in."""
    return [name for name, _ in model.named_modules(remove_duplicate=False) if name]


def _listed() -> str:
    return ", ".join(f'"{name}"' for name in _STYLES)


_STYLES: dict[str, Style] = {
    "column": Column(),
    "row": Row(),
    "vocabulary": Vocabulary(),
    "heads": Heads(),
    "channels": Channels(),
}
