"""Train one method in real processes and merge what the workers measured."""

from pathlib import Path
from typing import Any

from tests.methods.processes import run

from sandtable.events import ignore
from sandtable.study import Method, StudySettings
from sandtable.study.results import StudyRun, WorkerRecord, merge_workers
from sandtable.study.store import Assignment
from sandtable.study.training import train

__all__ = ["settings_for", "study"]


def settings_for(workers: int, method: Method, **changes: Any) -> StudySettings:
    """Return settings with 600 images for a tiny network; three epochs by default."""
    settings = StudySettings(
        data="synthetic", model="tiny-cnn", workers=workers, batch=20, epochs=3, images_share=0.15, methods=[method]
    )
    training = {"augment": False, "learning_rate": 0.05, "momentum": 0.0, "warm_up_epochs": 0}
    return settings.changed(**{"training": training, **changes})


def study(data: Path, settings: StudySettings) -> StudyRun:
    """Return the run of the only method."""
    ranks = run(settings.workers, _train, data, settings.model_dump())
    return merge_workers(ranks, name="it", fingerprint="", settings=ranks[0].resolved_settings)


def _train(data: Path, settings: dict[str, Any]) -> WorkerRecord:
    assignment = Assignment(settings=StudySettings(**settings), data=data, out=data)
    return train(assignment, 0, ignore)
