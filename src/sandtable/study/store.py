"""The study's folder, which workers read and write too. Each finished run is stored, so a stopped study continues.

OUT/study.json                      the assignment, which workers read
OUT/runs/NAME-FINGERPRINT.json      one finished run each; other settings have another fingerprint
OUT/logs/NAME.log                   the output of the workers' last attempt
OUT/results.json                    all runs of the present settings, rewritten after each run
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandtable.errors import StudyError
from sandtable.study.method import Method
from sandtable.study.results import VERSION, StudyRun
from sandtable.study.settings import StudySettings, settings_from

__all__ = ["METHODS", "Assignment", "Store", "check_out_folder", "write_json"]

METHODS = "sandtable.study.kinds.axes"
_ASSIGNMENT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A study as its workers see it; `python -m sandtable.study.worker OUT/study.json 3` needs nothing else.

    `methods` is the module whose classes the settings name.
    """

    settings: StudySettings
    data: Path
    out: Path
    methods: str = METHODS

    def result_file(self, method: Method) -> Path:
        """Return where that method's run is stored. Other settings give another name: nothing is overwritten."""
        return self.out / "runs" / f"{method.file_name}-{self.settings.fingerprint(method)}.json"

    @property
    def file(self) -> Path:
        return self.out / "study.json"

    def save(self) -> Path:
        """Write the assignment into the study's folder."""
        settings = self.settings.model_dump(mode="json")
        data = {"version": _ASSIGNMENT_VERSION, "settings": settings, "data": str(self.data), "methods": self.methods}
        write_json(self.file, data)
        return self.file

    @classmethod
    def load(cls, file: Path) -> "Assignment":
        """Load what `save` wrote."""
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StudyError(f"{file} must be the study.json of a study, but: {error}; run sandtable study") from None
        if not isinstance(data, dict) or data.get("version") != _ASSIGNMENT_VERSION:
            raise StudyError(f"{file} must be a study.json of version {_ASSIGNMENT_VERSION}; run sandtable study again")
        settings = settings_from(data["settings"], source=str(file))
        return cls(settings=settings, data=Path(data["data"]), out=file.parent, methods=data["methods"])


class Store:
    """The finished runs of one study on disk."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment

    def find(self, method: Method) -> StudyRun | None:
        """Return that method's stored run under the present settings, with its present name."""
        file = self.assignment.result_file(method)
        if not file.exists():
            return None
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise StudyError(f"{file} must be a stored run, but: {error}; move it away to run it again") from None
        return replace(StudyRun.from_dict(data, source=str(file)), name=method.name)

    def add_wire_bytes(self, method: Method, wire_bytes: float) -> None:
        """Add the kernel's count, which no worker knows, to a stored run."""
        run = self.find(method)
        assert run is not None
        write_json(self.assignment.result_file(method), replace(run, wire_bytes=wire_bytes).to_dict())

    def runs(self) -> list[StudyRun]:
        """Return all stored runs of the present settings, in the order of the methods."""
        runs = (self.find(method) for method in self.assignment.settings.methods)
        return [run for run in runs if run is not None]

    def write_results(self, runs: Sequence[StudyRun]) -> Path:
        """Write `results.json`: the settings and all runs, with totals and epochs."""
        file = self.assignment.out / "results.json"
        settings = self.assignment.settings.model_dump(mode="json")
        write_json(file, {"version": VERSION, "study": settings, "runs": [run.to_dict() for run in runs]})
        return file

    def log_file(self, method: Method) -> Path:
        """Return the file for the output of a run's workers, and create its folder."""
        file = self.assignment.out / "logs" / f"{method.file_name}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        return file


def check_out_folder(out: Path) -> None:
    """Refuse a folder that cannot be written, before hours of training; create nothing."""
    existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise StudyError(f"--out must be a folder, but {existing} is a file; choose another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StudyError(f"--out must be writable, but {existing} is not; choose another folder or change its rights")


def write_json(file: Path, data: Any) -> None:
    """Write JSON so that the file is complete or absent, whenever the process is stopped."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
