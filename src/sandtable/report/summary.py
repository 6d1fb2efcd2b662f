"""Summary: all figures of a rehearsed run as plain data, computed once and drawn many ways.

`summary.json` holds a summary with a schema name and a version; docs/report.md explains every key. Within a version no
key is renamed or given another meaning; new keys may be added. What needs a timeline is in `Summary.timing`, which is
None for a run whose time could not be computed. In the file its keys are at the top level, null for such a run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from sandtable.engine.memory import MemoryUse
from sandtable.engine.what_if import WhatIf
from sandtable.errors import ReportError, WhatIfError
from sandtable.findings import Finding, Severity
from sandtable.report.replacing import replacing
from sandtable.report.times import TimeBreakdown
from sandtable.report.traffic import TierLoad, TransactionSizes
from sandtable.report.work import RunEfficiency
from sandtable.trace import CaptureSummary, RankProgress
from sandtable.version import __version__

__all__ = [
    "FILE_NAME",
    "SCHEMA",
    "VERSION",
    "ClassMemory",
    "ClusterSummary",
    "DeviceSummary",
    "Effort",
    "LinkOrigin",
    "RunCost",
    "StepSpread",
    "Summary",
    "Throughput",
    "Timing",
    "UserInputs",
    "load_summary",
    "save_summary",
]

SCHEMA = "sandtable-summary"
VERSION = 3
FILE_NAME = "summary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInputs:
    """What only the user knows: the size of a step, the price, the cluster as named, and what to check."""

    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    usd_per_gpu_hour: float | None = None
    cluster: str = ""
    """The name or file given as `--cluster`; may be left out."""
    ignored_rules: tuple[str, ...] = ()
    """Rules whose findings are silenced."""
    checks: bool = True
    """Whether the rules look for mistakes; without, findings are only those that the figures depend on."""
    needs_time: bool = True
    """Whether a run without a step time is an error. Who looks for mistakes only is content with a note."""

    def __post_init__(self) -> None:
        for name in ("tokens_per_step", "samples_per_step", "usd_per_gpu_hour"):
            value = getattr(self, name)
            least = 0 if name == "usd_per_gpu_hour" else 1
            if value is not None and not (isinstance(value, int | float) and value >= least):
                raise ReportError(
                    f"{name} must be a number of at least {least}, but got {value!r}; leave it out if unknown"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """One kind of device, and how many ranks run on it."""

    name: str
    num_ranks: int
    memory_bytes: int
    peak_flops_per_s: int
    """In the number type of `RunEfficiency.dtype`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOrigin:
    """Where the numbers of one kind of link come from; `status` is measured, fitted or nominal."""

    kind: str
    bandwidth_bytes_per_s: float | None
    """Nominal, in each direction; None where it follows from what is below (a switch's uplinks)."""
    source: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """Where the run would take place; `asked` is the name or file that loads the cluster again."""

    name: str
    asked: str
    title: str
    num_nodes: int
    ranks_per_node: int
    devices: tuple[DeviceSummary, ...]
    links: tuple[LinkOrigin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMemory:
    """The fullest moment of the ranks of one class."""

    representative: int
    num_ranks: int
    ranks: str
    use: MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Tokens and samples per second, where the user gave their number per step."""

    tokens_per_step: int | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    samples_per_step: int | None
    samples_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The GPU-hours of a step; money only where a price is known."""

    gpu_hours_per_step: float
    gpu_hours_per_1000_steps: float
    usd_per_gpu_hour: float | None
    usd_per_step: float | None
    usd_per_1000_steps: float | None
    price_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What the rehearsal itself took, and how many GPU-seconds it simulated per core-second."""

    capture_wall_seconds: float
    capture_core_seconds: float
    simulation_wall_seconds: float
    simulation_core_seconds: float
    peak_rss_bytes: int
    gpu_seconds_per_core_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """How much the captured steps differ, and which of them the figures describe; steps are counted from 1.

    The first step counts only where it is the only one: it also sets up what the others use.
    """

    described: int
    """The number of a step that takes as long as the median."""
    num_timed: int
    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    slowest: int
    """The number of the slowest step."""

    @property
    def is_uniform(self) -> bool:
        """Whether the steps differ by less than a hundredth."""
        return self.slowest_seconds <= 1.01 * self.fastest_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The figures that need a timeline; they are those of one typical step."""

    step_seconds: float
    steps: StepSpread
    breakdown: TimeBreakdown
    efficiency: RunEfficiency
    throughput: Throughput | None
    tiers: tuple[TierLoad, ...]
    transactions: tuple[TransactionSizes, ...]
    cost: RunCost
    basis: dict[str, float]
    """Shares of the compute time that rest on measured, fitted and nominal numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run; `capture` holds those of the trace alone (classes, calls, host waits, notes).

    `timing` is None if the step time could not be computed; `findings` then explain why, and `progress` shows how far
    each captured class got.
    """

    command: tuple[str, ...]
    world_size: int
    cluster: ClusterSummary
    timing: Timing | None
    memory: tuple[ClassMemory, ...]
    effort: Effort
    capture: CaptureSummary
    inputs: UserInputs = UserInputs()
    what_if: WhatIf = field(default_factory=WhatIf)
    findings: tuple[Finding, ...] = ()
    silenced: tuple[Finding, ...] = ()
    """Findings that a comment in the script or `inputs.ignored_rules` silences."""
    progress: tuple[RankProgress, ...] = ()

    @property
    def step_seconds(self) -> float:
        """The duration of a step. Raises ReportError with the findings if it could not be computed."""
        return self.require_timing().step_seconds

    @property
    def is_failed(self) -> bool:
        """Whether the run has no step time, or would fail on the real cluster."""
        return self.timing is None or any(finding.severity is Severity.ERROR for finding in self.findings)

    def require_timing(self) -> Timing:
        """Return `timing`, or raise a ReportError with the findings if there is none."""
        if self.timing is None:
            reasons = "\n".join(map(str, self.findings)) or "capture the run with --ranks auto or --ranks all"
            raise ReportError(
                f"a run must reach the end of a step to have a step time, but this one did not: {reasons}"
            )
        return self.timing

    def to_dict(self) -> dict[str, object]:
        """Return the summary as dictionaries, lists, texts and numbers, ready for JSON."""
        timing = dict.fromkeys(_TIMING_KEYS) if self.timing is None else _plain(self.timing)
        own = {name: _plain(getattr(self, name)) for name in _OWN_KEYS}
        own["what_if"] = {name: value for name, value in own["what_if"].items() if value}
        own["capture"] = self.capture.to_dict()
        body = timing | own
        head: dict[str, object] = {"schema": SCHEMA, "version": VERSION, "sandtable": __version__}
        return head | {name: body[name] for name in _JSON_KEYS}

    def to_json(self) -> str:
        """Return the content of `summary.json`; the same figures give the same bytes."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, source: str = "the text") -> "Summary":
        """Return the summary that `to_json` wrote; `source` names it in error messages."""
        data = _parse(text, source)
        if data.get("schema") != SCHEMA:
            raise _damaged(source, f"its schema is not {SCHEMA}")
        if data.get("version") != VERSION:
            raise ReportError(
                f"the version of a summary must be {VERSION}, but {source} has {data.get('version')}; "
                "delete it, then run `sandtable report` on the run's directory"
            )
        from pydantic import TypeAdapter, ValidationError

        own = {name: value for name, value in data.items() if name in _OWN_KEYS}
        timed = {name: value for name, value in data.items() if name in _TIMING_KEYS}
        own["timing"] = None if timed.get("step_seconds") is None else timed
        try:
            return TypeAdapter(cls).validate_python(own)
        except ValidationError as error:
            first = error.errors()[0]
            raise _damaged(source, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except (ReportError, WhatIfError) as error:
            raise _damaged(source, str(error)) from error


_TIMING_KEYS = tuple(item.name for item in fields(Timing))
_OWN_KEYS = tuple(item.name for item in fields(Summary) if item.name != "timing")
_JSON_KEYS = (
    "command",
    "world_size",
    "step_seconds",
    "steps",
    "cluster",
    "breakdown",
    "efficiency",
    "throughput",
    "memory",
    "tiers",
    "transactions",
    "cost",
    "basis",
    "inputs",
    "what_if",
    "findings",
    "silenced",
    "progress",
    "effort",
    "capture",
)
"""The order of the keys in the file, answers first."""


def save_summary(summary: Summary, path: Path) -> None:
    """Write a summary; an earlier file stays whole until the new one is complete."""
    with replacing(path) as temporary:
        temporary.write_text(summary.to_json(), encoding="utf-8")


def load_summary(path: Path) -> Summary:
    """Read what `save_summary` wrote, given the file or its directory."""
    path = path / FILE_NAME if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ReportError(
            f"a run to report on must have a {FILE_NAME}, but {path} cannot be read ({reason}); "
            "give a directory that `sandtable run --out` wrote"
        ) from error
    return Summary.from_json(text, source=str(path))


def _parse(text: str, source: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not a finite number")

    try:
        data = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise _damaged(source, str(error)) from error
    if not isinstance(data, dict):
        raise _damaged(source, "it is not an object")
    return data


def _damaged(source: str, reason: str) -> ReportError:
    return ReportError(
        f"a summary must be what `sandtable run` wrote, but {source} is damaged ({reason}); "
        "delete it, then run `sandtable report` on the run's directory"
    )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
