"""Calibrate: measure this machine, or a lab on it, and write what was measured as a cluster file."""

from __future__ import annotations

from pathlib import Path

from sandtable.cluster import Cluster
from sandtable.engine.compute.measured import MeasuredRow, MeasuredTable
from sandtable.lab import Calibration, calibrate_to_file, plan_for
from sandtable.trace import Signature, Trace

__all__ = ["calibrate"]


def calibrate(
    out: str | Path, *, lab: Cluster | None = None, cores_per_host: float = 0.0, trace: Trace | None = None
) -> Calibration:
    """Measure this machine, and with `lab` its links, and write the cluster file `out`.

    The operators of `trace` are measured one by one; their times go into a table beside the file, where rehearsals on
    that cluster find them. `cores_per_host` limits the processors of each host of the lab.
    """
    file = Path(out)
    plan = plan_for(lab, cores=cores_per_host) if lab is not None else None
    calibration = calibrate_to_file(file, trace.signatures.texts if trace is not None else (), plan=plan)
    rows = [MeasuredRow(signature=Signature.parse(row.signature), ns=row.ns) for row in calibration.operators]
    MeasuredTable(rows, device=file.stem, source="sandtable calibrate").save(MeasuredTable.path_beside(file))
    return calibration
