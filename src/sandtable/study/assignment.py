"""The paper a worker is handed: `python -m sandtable.study.worker OUT/study.json 3` is all it needs to know."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandtable.errors import StudyError
from sandtable.study.method import Method
from sandtable.study.settings import StudySettings, settings_of

__all__ = ["Assignment", "write_whole"]

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A study as its workers see it. `methods` is the module that the words of its methods are looked up in."""

    settings: StudySettings
    data: Path
    out: Path
    methods: str = "sandtable.methods"

    def result_file(self, method: Method) -> Path:
        """Where the run of that method is stored. Other settings give another name: nothing is ever overwritten."""
        return self.out / "runs" / f"{method.file_name}-{self.settings.fingerprint(method)}.json"

    @property
    def file(self) -> Path:
        return self.out / "study.json"

    def save(self) -> Path:
        """Write it into the study's folder."""
        settings = self.settings.model_dump(mode="json")
        data = {"version": _VERSION, "settings": settings, "data": str(self.data), "methods": self.methods}
        write_whole(self.file, data)
        return self.file

    @classmethod
    def load(cls, file: Path) -> "Assignment":
        """The assignment in a file that `save` wrote."""
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StudyError(f"{file} must be the study.json of a study, but: {error}; run sandtable study") from None
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise StudyError(f"{file} must be a study.json of version {_VERSION}; run sandtable study again")
        settings = settings_of(data["settings"], source=str(file))
        return cls(settings=settings, data=Path(data["data"]), out=file.parent, methods=data["methods"])


def write_whole(file: Path, data: Any) -> None:
    """JSON in a file that is there whole or not at all, whenever the process is stopped."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
