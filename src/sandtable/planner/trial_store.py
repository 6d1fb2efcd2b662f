"""The trial store: what a search has found out so far, in an Optuna study on disk.

A search that was interrupted, or whose machine died, goes on where it stopped: outcomes are stored as they come, under
a key of all that they depend on (script, arguments, devices, network). The same study proposes what to try next where
there are more configurations than a search may try.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sandtable.errors import PlanError
from sandtable.planner.search_space import Configuration, Knob
from sandtable.planner.trial import Outcome

__all__ = ["TrialStore"]

_WORST = float("inf")


class TrialStore:
    """Outcomes by key. `knobs` and `seed` are for proposals.

    A study has one set of values per knob, so a search with other values has a study of its own in the same file.
    """

    def __init__(self, path: Path, knobs: Sequence[Knob], *, seed: int = 0) -> None:
        self._optuna = _optuna()
        path.parent.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{path}"
        self._study = self._optuna.create_study(
            study_name=_study_name(knobs),
            storage=storage,
            load_if_exists=True,
            sampler=self._optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        )
        self._distributions = {
            knob.name: self._optuna.distributions.CategoricalDistribution(knob.values) for knob in knobs
        }
        names = self._optuna.get_all_study_names(storage)
        studies = [self._optuna.load_study(study_name=name, storage=storage) for name in names]
        self._outcomes = {key: outcome for study in studies for key, outcome in _outcomes(study)}
        self._own_keys = {key for key, _ in _outcomes(self._study)}

    def find(self, key: str) -> Outcome | None:
        """Return the outcome under this key, if there is one, also of a search with other values."""
        return self._outcomes.get(key)

    def keep(self, key: str, configuration: Configuration, outcome: Outcome, value: float | None) -> None:
        """Keep an outcome; `value` is what the search minimises, None for a configuration without figures."""
        self._outcomes[key] = outcome
        if key in self._own_keys:
            return
        self._own_keys.add(key)
        trial = self._optuna.trial.create_trial(
            params=configuration.to_dict(),
            distributions=self._distributions,
            value=_WORST if value is None else value,
            user_attrs={"key": key, "outcome": json.dumps(outcome.to_dict())},
        )
        self._study.add_trial(trial)

    def propose(self, candidates: Sequence[Configuration]) -> Configuration:
        """Return the configuration to try next: the sampler's, or if it is no candidate the one closest to it."""
        trial = self._study.ask(self._distributions)
        wanted = trial.params
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return max(candidates, key=lambda one: sum(wanted[name] == value for name, value in one.values))


def _study_name(knobs: Sequence[Knob]) -> str:
    text = "; ".join(f"{knob.name}={knob.values!r}" for knob in knobs)
    return f"sandtable-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _outcomes(study: Any) -> Iterator[tuple[str, Outcome]]:
    for trial in study.get_trials(deepcopy=False):
        if "outcome" in trial.user_attrs:
            yield trial.user_attrs["key"], Outcome.from_dict(json.loads(trial.user_attrs["outcome"]))


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise PlanError("a search needs the package optuna, which is not installed; pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
