"""The study's folder: one file for each finished run, written at once, so that a stopped study continues.

OUT/study.json                      what its workers read
OUT/runs/NAME-FINGERPRINT.json      one finished run each; other settings have another fingerprint
OUT/logs/NAME.log                   what the workers of the last try said
OUT/results.json                    all runs of the present settings, made anew after each run
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sandtable.errors import StudyError
from sandtable.study.assignment import Assignment, write_whole
from sandtable.study.method import Method
from sandtable.study.results import VERSION, Run

__all__ = ["Store"]


class Store:
    """Finished runs of one study on disk."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment

    def find(self, method: Method) -> Run | None:
        """The stored run of that method under the present settings, by the name it has now."""
        file = self.assignment.result_file(method)
        if not file.exists():
            return None
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise StudyError(f"{file} must be a stored run, but: {error}; move it away to run it again") from None
        return replace(Run.from_dict(data, source=str(file)), name=method.name)

    def note_wire_bytes(self, method: Method, wire_bytes: float) -> None:
        """Add what the kernel counted, which no worker can know."""
        run = self.find(method)
        assert run is not None
        write_whole(self.assignment.result_file(method), replace(run, wire_bytes=wire_bytes).to_dict())

    def runs(self) -> list[Run]:
        """All stored runs of the present settings, in their order."""
        found = (self.find(method) for method in self.assignment.settings.methods)
        return [run for run in found if run is not None]

    def write_results(self, runs: Sequence[Run]) -> Path:
        """`results.json`: the settings and all runs, totals and epochs."""
        file = self.assignment.out / "results.json"
        settings = self.assignment.settings.model_dump(mode="json")
        write_whole(file, {"version": VERSION, "study": settings, "runs": [run.to_dict() for run in runs]})
        return file

    def log_file(self, method: Method) -> Path:
        """Where the workers' own words of a run go."""
        file = self.assignment.out / "logs" / f"{method.file_name}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        return file
