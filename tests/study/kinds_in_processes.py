"""Real workers that train by one kind of method: what `study` gives is what each of them saw."""

from pathlib import Path
from typing import Any

from tests.methods.processes import run

from sandtable.study import Method, StudySettings
from sandtable.study.assignment import Assignment
from sandtable.study.results import Run, run_of_ranks
from sandtable.study.training import train

__all__ = ["settings_for", "study"]


def settings_for(workers: int, method: Method, **changes: Any) -> StudySettings:
    """Six hundred images for a tiny network; three epochs unless told."""
    settings = StudySettings(
        data="synthetic", model="tiny-cnn", workers=workers, batch=20, epochs=3, images_share=0.15, methods=[method]
    )
    training = {"augment": False, "learning_rate": 0.05, "momentum": 0.0, "warm_up_epochs": 0}
    return settings.changed(**{"training": training, **changes})


def study(data: Path, settings: StudySettings) -> Run:
    """The run of its only method."""
    ranks = run(settings.workers, _train, data, settings.model_dump())
    return run_of_ranks(ranks, name="it", fingerprint="", settings=ranks[0]["about"])


def _train(data: Path, settings: dict[str, Any]) -> dict[str, Any]:
    assignment = Assignment(settings=StudySettings(**settings), data=data, out=data)
    return train(assignment, 0, lambda _: None)
