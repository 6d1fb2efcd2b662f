"""Ranking: of several ways to split one model over the same GPUs, is the one predicted best also measured best?"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sandtable.validation.scores import Outcome, Score

__all__ = ["Contest", "contests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Rows that do the same job differently; the smaller the figure, the better."""

    settings: tuple[tuple[str, Any], ...]
    outcomes: tuple[Outcome, ...]

    @property
    def pick(self) -> Outcome:
        """The one predicted best."""
        return min(self.outcomes, key=lambda outcome: outcome.predicted)

    @property
    def best(self) -> Outcome:
        """The one measured best."""
        return min(self.outcomes, key=lambda outcome: outcome.measured)

    @property
    def regret_pct(self) -> float:
        """How much slower the pick really is than the best."""
        return 100.0 * (self.pick.measured / self.best.measured - 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **dict(self.settings),
            "rows": len(self.outcomes),
            "pick": self.pick.row.id,
            "best": self.best.row.id,
            "regret_pct": round(self.regret_pct, 3),
        }


def contests(score: Score, within: Iterable[str]) -> list[Contest]:
    """Rows of a score that are equal in the settings `within`, where there are at least two."""
    names = tuple(within)
    groups: dict[tuple[Any, ...], list[Outcome]] = defaultdict(list)
    for outcome in score.outcomes:
        groups[tuple(outcome.row.settings.get(name) for name in names)].append(outcome)
    return [
        Contest(settings=tuple(zip(names, key, strict=True)), outcomes=tuple(rows))
        for key, rows in groups.items()
        if names and len(rows) > 1
    ]
