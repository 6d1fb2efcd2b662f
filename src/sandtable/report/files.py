"""Files: what a run leaves in its directory."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandtable.errors import ReportError
from sandtable.report.chakra import write_chakra
from sandtable.report.chosen import choose_ranks
from sandtable.report.needs import Timeline
from sandtable.report.page import compare_page, run_page
from sandtable.report.perfetto import write_perfetto
from sandtable.report.summary import FILE_NAME, Asked, RunSummary, load_summary, save_summary, summarise_run
from sandtable.trace import Trace

__all__ = ["Report", "forget_report", "write_comparison", "write_report"]

PAGE = "report.html"
PERFETTO = "trace.json.gz"
CHAKRA = "chakra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a run, and the files that tell them."""

    summary: RunSummary
    files: dict[str, Path]


def forget_report(out: Path) -> None:
    """Removes what an earlier run left in `out`, so that it is not taken for that of one that fails."""
    for name in (PAGE, FILE_NAME, PERFETTO):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / CHAKRA, ignore_errors=True)


def write_report(
    trace: Trace,
    timeline: Timeline,
    out: Path,
    *,
    asked: Asked | None = None,
    ranks: Sequence[int] = (),
    chakra: bool = False,
) -> Report:
    """Writes `summary.json`, `report.html` and `trace.json.gz` into `out`, and Chakra traces if asked for."""
    if ranks:
        choose_ranks(trace, timeline, asked=ranks)  # a wrong number is told before work is done
    summary = summarise_run(trace, timeline, asked)
    chosen = choose_ranks(trace, timeline, slowest=summary.breakdown["slowest"].rank, asked=ranks)
    files = {"report": out / PAGE, "summary": out / FILE_NAME, "perfetto": out / PERFETTO}
    try:
        out.mkdir(parents=True, exist_ok=True)
        save_summary(summary, files["summary"])
        files["report"].write_text(run_page(trace, timeline, summary, ranks=chosen), encoding="utf-8")
        write_perfetto(timeline, chosen, files["perfetto"])
        if chakra:
            write_chakra(trace, timeline, chosen, out / CHAKRA)
            files["chakra"] = out / CHAKRA
    except OSError as error:
        raise _not_writable(out, error) from error
    return Report(summary=summary, files=files)


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Writes one page about several runs, each of which has a `summary.json`; the first is the yardstick."""
    summaries = {name: load_summary(folder) for name, folder in zip(_names(folders), folders, strict=True)}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(compare_page(summaries), encoding="utf-8")
    except OSError as error:
        raise _not_writable(out, error) from error
    return out


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths: as few of them as tell the runs apart."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    raise ReportError(
        f"runs to compare must differ, but {', '.join(map(str, folders))} holds one twice; name every directory once"
    )


def _not_writable(path: Path, error: OSError) -> ReportError:
    return ReportError(
        f"the directory of a report must be writable, but {path} could not be written ({error.strerror}); "
        "choose another one with --out"
    )
