"""Results of a run as plain data: epoch by epoch, over all workers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sandtable.errors import StudyError

__all__ = ["VERSION", "Epoch", "StudyRun", "WorkerRecord", "merge_workers"]

VERSION = 1
"""Of a stored run and of `results.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch, of one worker or of a run. The training clock stops while accuracy is measured.

    In a run, `seconds` are those of the slowest worker; communication, synchronisation (communication and waiting for
    others), bytes and messages are means over workers. `exposed_s` is how long the training loop stood still for all of
    that: less than synchronisation where messages overlap the backward pass, more where they are also encoded.
    `accuracy` is that of the mean of all replicas.
    """

    seconds: float
    communication_s: float
    synchronisation_s: float
    exposed_s: float
    sent_bytes: float
    received_bytes: float
    messages: float
    loss: float
    accuracy: float
    disagreement: float

    @property
    def compute_s(self) -> float:
        """The time in which nothing was exchanged."""
        return max(0.0, self.seconds - self.exposed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """What one worker measured. Its own replica got `replica_correct` of `tested` test images right.

    `resolved_settings` complete the settings of the run, such as the stages of a pipeline.
    """

    epochs: tuple[Epoch, ...]
    replica_correct: float
    tested: int
    memory_bytes: float
    resolved_settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One configuration, trained to the end."""

    name: str
    fingerprint: str
    settings: Mapping[str, Any]
    epochs: tuple[Epoch, ...]
    replica_accuracy: float
    """Of the replicas themselves, each on its part of the test images, before the last synchronisation."""
    memory_bytes: float
    """Mean memory in use per worker at the end; memory that processes share is divided among them."""
    wire_bytes: float | None = None
    """Mean bytes sent per host, by the kernel's counters, including evaluation; only on the lab."""

    @property
    def accuracy(self) -> float:
        return self.epochs[-1].accuracy

    @property
    def learning_rate(self) -> float | None:
        """The run's highest learning rate; None if its settings have none."""
        for table in ("method", "training"):
            if (rate := self.settings.get(table, {}).get("learning_rate")) is not None:
                return float(rate)
        return None

    @property
    def seconds(self) -> float:
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def compute_s(self) -> float:
        return sum(epoch.compute_s for epoch in self.epochs)

    @property
    def communication_s(self) -> float:
        return sum(epoch.communication_s for epoch in self.epochs)

    @property
    def synchronisation_s(self) -> float:
        return sum(epoch.synchronisation_s for epoch in self.epochs)

    @property
    def exposed_s(self) -> float:
        return sum(epoch.exposed_s for epoch in self.epochs)

    @property
    def sent_bytes(self) -> float:
        return sum(epoch.sent_bytes for epoch in self.epochs)

    @property
    def messages(self) -> float:
        return sum(epoch.messages for epoch in self.epochs)

    def to_dict(self) -> dict[str, object]:
        """Return plain data with the totals, readable without this class."""
        times = ("seconds", "compute_s", "communication_s", "synchronisation_s", "exposed_s")
        totals = {name: getattr(self, name) for name in ("accuracy", *times, "sent_bytes", "messages")}
        return {"version": VERSION, **asdict(self), "totals": totals}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, source: str) -> "StudyRun":
        """Read what `to_dict` returned; `source` names the file in an error message."""
        if data.get("version") != VERSION:
            raise StudyError(
                f"{source} must be a run of version {VERSION}, but got {data.get('version')}; move it away to run again"
            )
        try:
            values = {item.name: data[item.name] for item in fields(cls)}
            values["epochs"] = tuple(Epoch(**epoch) for epoch in data["epochs"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise StudyError(
                f"{source} must be a stored run, but {error} is wrong; move it away to run again"
            ) from None


def merge_workers(
    workers: Sequence[WorkerRecord], *, name: str, fingerprint: str, settings: Mapping[str, Any]
) -> StudyRun:
    """Combine what the workers of a run measured."""
    return StudyRun(
        name=name,
        fingerprint=fingerprint,
        settings=settings,
        epochs=tuple(map(_merge_epochs, zip(*(worker.epochs for worker in workers), strict=True))),
        replica_accuracy=sum(worker.replica_correct for worker in workers) / sum(worker.tested for worker in workers),
        memory_bytes=sum(worker.memory_bytes for worker in workers) / len(workers),
    )


def _merge_epochs(epochs: Sequence[Epoch]) -> Epoch:
    means = {item.name: sum(getattr(epoch, item.name) for epoch in epochs) / len(epochs) for item in fields(Epoch)}
    return Epoch(**(means | {"seconds": max(epoch.seconds for epoch in epochs)}))
