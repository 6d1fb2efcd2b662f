"""Measured times: what a device really took for an operator, which takes precedence over every formula.

A table is a JSON file, one row for each operator on one geometry, so that any program that can run an operator and read
a clock can write one (`sandtable calibrate` does):

    {"format": "sandtable-measured", "version": 1, "device": "epyc-2-cores", "source": "sandtable calibrate, 2 threads",
     "rows": [{"signature": {"op": "aten::mm", "in": [["float32", [512, 512], [512, 1], "cpu"], ...],
                             "out": [["float32", [512, 512], [512, 1], "cpu"]], "args": ["t", "t"]}, "ns": 5312000.0},
              ...]}

`signature` is the text of a `Signature` as in a trace. A row applies to the operator of its name (any overload) on
tensors of its shapes and types with its arguments; strides and the device's name are not compared, and a row with
`"args": null` applies to all arguments. Between a smaller and a larger measured size of the same operator, times are
interpolated linearly; only for operators whose time follows their bytes.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from sandtable.cluster.cluster import Cluster
from sandtable.errors import ClusterError, TraceError
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["FORMAT", "VERSION", "MeasuredRow", "MeasuredTable"]

FORMAT = "sandtable-measured"
VERSION = 1

_Geometry = tuple[tuple[str, tuple[int, ...]], ...]
_Exact = tuple[str, _Geometry, str | None]
_Curve = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measurement: `signature` took `ns` nanoseconds; with `any_arguments` its arguments do not matter."""

    signature: Signature
    ns: float
    any_arguments: bool = False


class MeasuredTable:
    """Rows by signature, and by size along each operator's curve."""

    def __init__(self, rows: Iterable[MeasuredRow] = (), *, device: str = "", source: str = "") -> None:
        self.rows = tuple(rows)
        self.device = device
        self.source = source
        self._exact: dict[_Exact, float] = {}
        points: dict[_Curve, dict[int, float]] = {}
        for row in self.rows:
            args = None if row.any_arguments else row.signature.args
            self._exact[(row.signature.name, _geometry(row.signature.inputs), args)] = row.ns
            points.setdefault(_curve(row.signature), {})[_size_bytes(row.signature)] = row.ns
        self._curves = {key: sorted(by_size.items()) for key, by_size in points.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, signature: Signature) -> float | None:
        """Return the time (ns) of exactly this operator on these shapes, or None if it was not measured."""
        geometry = _geometry(signature.inputs)
        exact = self._exact.get((signature.name, geometry, signature.args))
        return exact if exact is not None else self._exact.get((signature.name, geometry, None))

    def interpolate(self, signature: Signature) -> float | None:
        """Return the time (ns) on the line between the next smaller and the next larger measured size, or None."""
        curve = self._curves.get(_curve(signature), [])
        size = _size_bytes(signature)
        above = bisect_left(curve, (size, float("-inf")))
        if above == len(curve) or (above == 0 and curve[0][0] != size):
            return None
        if curve[above][0] == size:
            return curve[above][1]
        (low, low_ns), (high, high_ns) = curve[above - 1], curve[above]
        return low_ns + (high_ns - low_ns) * (size - low) / (high - low)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file that `load` reads."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "source": self.source,
            "rows": [_row_data(row) for row in self.rows],
        }
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "MeasuredTable":
        """Load the table in the file `path`. Raise ClusterError if it is not one."""
        file = Path(path)
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ClusterError(f"{file}: the file must be readable UTF-8 text, but: {error}; check the path") from None
        except json.JSONDecodeError as error:
            raise ClusterError(f"{file}: the file must be valid JSON, but: {error}; {_REMEDY}") from None
        _check_heading(file, data)
        rows = [_row(file, number, row) for number, row in enumerate(data["rows"])]
        return cls(rows, device=str(data.get("device", "")), source=str(data.get("source", "")))

    @classmethod
    def for_cluster(cls, cluster: Cluster) -> "MeasuredTable | None":
        """Load the table that calibration left beside the file of `cluster` (lab.toml, lab.measured.json), if any."""
        if cluster.source_file is None:
            return None
        file = cls.path_beside(cluster.source_file)
        return cls.load(file) if file.exists() else None

    @staticmethod
    def path_beside(cluster_file: Path) -> Path:
        """Return where the table of a cluster file is kept."""
        return cluster_file.with_suffix(".measured.json")


_REMEDY = "make the table again with `sandtable calibrate`"


def _check_heading(file: Path, data: object) -> None:
    if not isinstance(data, Mapping) or data.get("format") != FORMAT or not isinstance(data.get("rows"), list):
        raise ClusterError(f'{file}: the file must be an object with "format": "{FORMAT}" and "rows"; {_REMEDY}')
    if data.get("version") != VERSION:
        raise ClusterError(f"{file}: version must be {VERSION}, but got {data.get('version')!r}; {_REMEDY}")


def _row(file: Path, number: int, row: Any) -> MeasuredRow:
    """Check row `number`: a signature and a positive, finite time."""
    if not isinstance(row, Mapping) or not isinstance(row.get("signature"), Mapping):
        raise ClusterError(
            f"{file}: rows[{number}] must be an object with signature and ns, but got {row!r}; {_REMEDY}"
        )
    ns = row.get("ns")
    if isinstance(ns, bool) or not isinstance(ns, int | float) or not 0 < ns < float("inf"):
        raise ClusterError(f"{file}: rows[{number}].ns must be a positive number, but got {ns!r}; {_REMEDY}")
    data = dict(row["signature"])
    any_arguments = data.get("args") is None
    if any_arguments:
        data["args"] = []
    try:
        signature = Signature.parse(json.dumps(data))
        _size_bytes(signature)
    except TraceError as error:
        raise ClusterError(f"{file}: rows[{number}].signature: {error}") from None
    return MeasuredRow(signature=signature, ns=float(ns), any_arguments=any_arguments)


def _row_data(row: MeasuredRow) -> dict[str, Any]:
    signature = json.loads(row.signature.text)
    if row.any_arguments:
        signature["args"] = None
    return {"signature": signature, "ns": row.ns}


def _geometry(specs: Iterable[TensorSpec]) -> _Geometry:
    return tuple((spec.dtype, spec.shape) for spec in specs)


def _curve(signature: Signature) -> _Curve:
    """Return what two sizes must share to lie on one line: the operator, and the types of its tensors."""
    return signature.name, tuple(spec.dtype for spec in signature.inputs)


def _size_bytes(signature: Signature) -> int:
    """Return all bytes read and written, whatever the tensors' device."""
    return sum(spec.distinct_bytes for spec in (*signature.inputs, *signature.outputs))
