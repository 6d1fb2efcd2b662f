"""A launcher's options as a table, and the part of a command line that they make up.

A launcher's command line is its own options, then the script, then the script's arguments. To find the script one must
know which options take a value. So an option that is not in the table is an error: a guess could run the wrong file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sandtable.errors import LaunchError

__all__ = ["OptionTable", "ParsedOptions", "option_names", "parse_count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedOptions:
    """The options of a launcher as typed, in order, and the words after them."""

    launcher: str
    given: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        return any(other == name for other, _ in self.given)

    def all(self, name: str) -> list[str]:
        """Return every value of an option that may be repeated."""
        return [value for other, value in self.given if other == name]

    def get(self, name: str) -> str | None:
        """Return the option's last value."""
        values = self.all(name)
        return values[-1] if values else None

    def count(self, name: str) -> int | None:
        """Return the option's value as a number of at least 1."""
        value = self.get(name)
        return None if value is None else parse_count(value, f"{self.launcher} --{name}")

    def reject(self, reasons: Mapping[str, str]) -> None:
        """Reject options that a virtual GPU cannot honour; `reasons` gives the rule and the remedy of each."""
        for name, reason in reasons.items():
            if name in self:
                raise LaunchError(f"{self.launcher} --{name} cannot be rehearsed: {reason}")

    def require_script(self) -> tuple[str, tuple[str, ...]]:
        """Return what the launcher runs, and its arguments; like argparse, drop a `--` between the two."""
        if not self.rest:
            raise LaunchError(
                f"{self.launcher} must be given a script, but the command ends after its options; add one"
            )
        return self.rest[0], self.rest[2:] if self.rest[1:2] == ("--",) else self.rest[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """The options a launcher knows, by their long names with underscores.

    `values` take a value, `pairs` two, `switches` none, and `optional` only one attached with `=`. `short` gives the
    long name of every other spelling. `has_both_spellings` holds where `--a-b` is also `--a_b`, `may_shorten` where a
    beginning that is unique is enough.
    """

    launcher: str
    values: frozenset[str]
    pairs: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    short: Mapping[str, str] = field(default_factory=dict)
    has_both_spellings: bool = True
    may_shorten: bool = False

    def parse(self, words: Sequence[str]) -> ParsedOptions:
        """Split `words` into the launcher's options and the rest."""
        given: list[tuple[str, str]] = []
        position = 0
        while position < len(words):
            word = words[position]
            if word == "--":
                position += 1
                break
            if not word.startswith("-") or word == "-":
                break
            name, value = self._split(word)
            num_values = 2 if name in self.pairs else int(value is None and name in self.values)
            if position + num_values >= len(words):
                raise LaunchError(f"{self.launcher} {word} must have a value and a script must follow; add them")
            if num_values:
                value = " ".join(words[position + 1 : position + 1 + num_values])
                position += num_values
            given.append((name, value or ""))
            position += 1
        return ParsedOptions(launcher=self.launcher, given=tuple(given), rest=tuple(words[position:]))

    def _split(self, word: str) -> tuple[str, str | None]:
        """Return an option's name, and its value if it is attached."""
        flag, has_value, value = word.partition("=")
        name = self._name(flag)
        if name is not None:
            if has_value and name in self.switches:
                raise LaunchError(f"{self.launcher} {flag} must stand alone, but got '{word}'; drop the value")
            return name, value if has_value else None
        if not word.startswith("--"):
            attached = self._attached(word)
            if attached is not None:
                return attached
        raise LaunchError(
            f"{self.launcher}'s options must be known, to find the script behind them, but got '{flag}'; "
            f"check its spelling, or leave it out if it does not change what the ranks do"
        )

    def _name(self, flag: str) -> str | None:
        if flag in self.short:
            return self.short[flag]
        if not flag.startswith("--"):
            return None
        text = flag[2:]
        if self.has_both_spellings:
            text = text.replace("-", "_")
        names = self.values | self.pairs | self.switches | self.optional
        if text in names:
            return text
        longer = _starting_with(names, text) if self.may_shorten else []
        return longer[0] if len(longer) == 1 else None

    def _attached(self, word: str) -> tuple[str, str | None] | None:
        """Read a single letter with its value, such as `-N4`, or letters without values together, such as `-lu`."""
        name = self.short.get(word[:2])
        if name in self.values:
            return name, word[2:]
        if all(self.short.get(f"-{letter}") in self.switches | self.optional for letter in word[1:]):
            return self.short[f"-{word[-1]}"], None
        return None


def option_names(text: str) -> frozenset[str]:
    """Return the names in a text, which a table lists more readably than a set of strings."""
    return frozenset(text.split())


def parse_count(text: str, option: str) -> int:
    """Read a number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise LaunchError(f"{option} must be a number of at least 1, but got '{text}'; write it as digits")
    return int(text)


def _starting_with(names: Iterable[str], text: str) -> list[str]:
    return [name for name in names if name.startswith(text)]
