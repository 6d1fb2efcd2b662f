"""Tensor plans: which layers of a model are split, and how.

    TensorPlan({"mlp.up": "column", "mlp.down": "row", "attn": "heads", "attn.qkv": ColumnSplit(parts=3),
                "attn.out": "row", "embedding": "vocabulary", "head": "vocabulary"}, sequence=("blocks.*", "norm"))

A pattern matches the end of a module's name, component by component: "mlp.up" matches `blocks.0.mlp.up` and
`encoder.mlp.up`; `*` matches any one component, "h*" one that begins with h. A pattern with a leading dot must match
the whole name: ".0" is the first module of an `nn.Sequential`, and of none inside it. What no pattern matches stays
whole: every rank does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.styles import ChannelSplit, ColumnSplit, HeadSplit, RowSplit, SplitStyle, VocabularySplit

__all__ = ["TensorPlan", "matches"]


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """Styles by pattern; `sequence`: the modules between which sequence parallelism splits the tokens.

    Tokens are split before the first module that `sequence` names and gathered after the last, in the model's order.
    With `is_strict`, a pattern that matches no module is an error.
    """

    styles: Mapping[str, str | SplitStyle]
    sequence: tuple[str, ...] = field(default=(), kw_only=True)
    is_strict: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        for pattern, style in self.styles.items():
            if not isinstance(style, SplitStyle) and style not in _STYLES:
                raise MethodError(
                    f"a style must be {_listed()} or a SplitStyle such as ColumnSplit(parts=3), but {pattern!r} has "
                    f"{style!r}"
                )

    def without(self, *patterns: str) -> TensorPlan:
        """Return the plan without these patterns, so that what they name stays whole."""
        for pattern in patterns:
            if pattern not in self.styles:
                raise MethodError(
                    f"a pattern to leave out must be in the plan, but {pattern!r} is not; it has {sorted(self.styles)}"
                )
        return replace(self, styles={key: style for key, style in self.styles.items() if key not in patterns})

    def choose(self, model: nn.Module) -> dict[str, SplitStyle]:
        """Return the style of each module that has one, keyed by name, in the model's order."""
        chosen: dict[str, SplitStyle] = {}
        for name in _names(model):
            matching = [pattern for pattern in self.styles if matches(pattern, name)]
            styles = {as_style(self.styles[pattern]) for pattern in matching}
            if len(styles) > 1:
                raise MethodError(
                    f"a module must have one style, but {name} matches {matching}; write a longer pattern for one"
                )
            if styles:
                chosen[name] = styles.pop()
        self._check_all_match(self.styles, model)
        return chosen

    def modules_of_sequence(self, model: nn.Module) -> list[str]:
        """Return the names of the modules whose tokens are split, in the model's order."""
        self._check_all_match(self.sequence, model)
        return [name for name in _names(model) if any(matches(pattern, name) for pattern in self.sequence)]

    def _check_all_match(self, patterns: Iterable[str], model: nn.Module) -> None:
        names = _names(model)
        unused = [pattern for pattern in patterns if not any(matches(pattern, name) for name in names)]
        if unused and self.is_strict:
            raise MethodError(
                f"every pattern of a plan must match a module, but {unused} match none; print(model) shows the names"
            )


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the end of a dotted name, or all of it if the pattern begins with a dot."""
    wanted, names = pattern.removeprefix(".").split("."), name.split(".")
    if pattern.startswith(".") and len(names) != len(wanted):
        return False
    tail = names[-len(wanted) :]
    return len(tail) == len(wanted) and all(map(fnmatchcase, tail, wanted))


def as_style(style: str | SplitStyle) -> SplitStyle:
    return _STYLES[style] if isinstance(style, str) else style


def _names(model: nn.Module) -> list[str]:
    """Return the names of all modules but the model itself, which has no parent to be replaced in."""
    return [name for name, _ in model.named_modules(remove_duplicate=False) if name]


def _listed() -> str:
    return ", ".join(f'"{name}"' for name in _STYLES)


_STYLES: dict[str, SplitStyle] = {
    "column": ColumnSplit(),
    "row": RowSplit(),
    "vocabulary": VocabularySplit(),
    "heads": HeadSplit(),
    "channels": ChannelSplit(),
}
