"""What came of a run, as plain data: epoch by epoch, over all workers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sandtable.errors import StudyError

__all__ = ["VERSION", "Epoch", "Run", "run_of_ranks"]

VERSION = 1
"""Of a stored run and of `results.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch. Seconds are of the training clock, which stands still while accuracy is measured.

    `seconds` are of the slowest worker; communication, synchronisation (communication and waiting for others), bytes
    and messages are a worker's, on average. `exposed_s` is how long the training loop stood still for all of that: less
    than synchronisation where messages travel while gradients are still computed, more where they are also coded.
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
        """What is left of the time when nothing is exchanged."""
        return max(0.0, self.seconds - self.exposed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One configuration, trained to the end."""

    name: str
    fingerprint: str
    settings: Mapping[str, Any]
    epochs: tuple[Epoch, ...]
    replica_accuracy: float
    """Of the replicas themselves, each on its part of the test images, before the last synchronisation."""
    memory_bytes: float
    """A worker's part of the memory in use at the end, on average; what processes share is divided among them."""
    wire_bytes: float | None = None
    """Bytes a host sent on its cable, on average, by the kernel's counters; only on the lab. Evaluation is included."""

    @property
    def accuracy(self) -> float:
        return self.epochs[-1].accuracy

    @property
    def learning_rate(self) -> float | None:
        """The highest of the run; None: its settings do not say."""
        for part in ("method", "training"):
            if (rate := self.settings.get(part, {}).get("learning_rate")) is not None:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the totals, so that nobody needs this class to read a result."""
        times = ("seconds", "compute_s", "communication_s", "synchronisation_s", "exposed_s")
        totals = {name: getattr(self, name) for name in ("accuracy", *times, "sent_bytes", "messages")}
        return {"version": VERSION, **asdict(self), "totals": totals}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, source: str) -> "Run":
        """A run as `to_dict` gave it; `source` is the file, for the message if it is not one."""
        if data.get("version") != VERSION:
            raise StudyError(
                f"{source} must be a run of version {VERSION}, but got {data.get('version')}; move it away to run again"
            )
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            values["epochs"] = tuple(Epoch(**epoch) for epoch in data["epochs"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise StudyError(
                f"{source} must be a stored run, but {error} is wrong; move it away to run again"
            ) from None


def run_of_ranks(ranks: Sequence[Mapping[str, Any]], **about: Any) -> Run:
    """The run that several workers saw, each with its `epochs`, its `replica_correct` of `tested`, and its memory."""
    epochs = tuple(_epoch([rank["epochs"][number] for rank in ranks]) for number in range(len(ranks[0]["epochs"])))
    return Run(
        epochs=epochs,
        replica_accuracy=sum(rank["replica_correct"] for rank in ranks) / sum(rank["tested"] for rank in ranks),
        memory_bytes=sum(rank["memory_bytes"] for rank in ranks) / len(ranks),
        **about,
    )


def _epoch(rows: Sequence[Mapping[str, float]]) -> Epoch:
    means = {field.name: sum(row[field.name] for row in rows) / len(rows) for field in fields(Epoch)}
    return Epoch(**(means | {"seconds": max(row["seconds"] for row in rows)}))
