"""Files: what a run leaves in its directory.

Every file is written under a temporary name and moved when all of them are complete: a crash leaves the old report or
the new one, never half of one.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sandtable.engine.timeline import Timeline
from sandtable.errors import ReportError
from sandtable.report.chakra import write_chakra
from sandtable.report.page import compare_page, run_page
from sandtable.report.perfetto import write_perfetto
from sandtable.report.replacing import TEMPORARY_PREFIX, replacing
from sandtable.report.shown_ranks import choose_ranks
from sandtable.report.summary import FILE_NAME, Summary, load_summary
from sandtable.trace import FILE_NAME as TRACE_NAME

__all__ = [
    "PAGE",
    "SUMMARY",
    "Report",
    "clear_run",
    "clear_stale",
    "files_in",
    "require_writable",
    "write_comparison",
    "write_page",
    "write_report",
]

PAGE = "report.html"
SUMMARY = FILE_NAME
PERFETTO = "trace.json.gz"
CHAKRA = "chakra"
_NAMES = {"report": PAGE, "summary": SUMMARY, "perfetto": PERFETTO, "chakra": CHAKRA, "trace": TRACE_NAME}
_PAGE_SUFFIXES = (".html", ".htm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a run, and the files that hold them."""

    summary: Summary
    files: dict[str, Path]


def require_writable(out: Path, *, is_page: bool | None = None) -> None:
    """Check that `out` can be written, before any work is done; nothing is left behind.

    `out` is the directory of a report, or with `is_page` one HTML file. By default its suffix decides.
    """
    is_page = out.suffix in _PAGE_SUFFIXES if is_page is None else is_page
    try:
        if is_page and out.is_dir():
            raise ReportError(f"a page must be a file, but {out} is a directory; name a file in it with --out")
        if not is_page and out.exists() and not out.is_dir():
            raise ReportError(f"a report needs a directory, but {out} is a file; name a directory with --out")
        _try_writing(out.parent if is_page else out)
    except OSError as error:
        raise _not_writable(out, error) from error


def clear_run(out: Path) -> None:
    """Remove what an earlier run wrote into `out` and nothing else, so that it is not taken for the next run's."""
    _remove(out, ("trace", "report", "summary", "perfetto", "chakra"))


def clear_stale(out: Path, report: Report) -> None:
    """Remove what an earlier run wrote into `out` and `report` did not replace."""
    _remove(out, [what for what in ("perfetto", "chakra") if what not in report.files])


def files_in(out: Path) -> dict[str, Path]:
    """Return the files that a run left in `out`, keyed by what they are."""
    return {what: out / name for what, name in _NAMES.items() if (out / name).exists()}


def write_report(
    summary: Summary, timeline: Timeline | None, out: Path, *, ranks: Sequence[int] = (), chakra: bool = False
) -> Report:
    """Write the report of a run into the directory `out`.

    A run with a timeline gets `report.html`, `summary.json`, `trace.json.gz` and, with `chakra`, Chakra traces. A run
    without one gets the first two: the page then shows what went wrong and how far each rank got.
    """
    shown = () if timeline is None else _shown_ranks(summary, timeline, ranks)
    files = {"report": out / PAGE, "summary": out / SUMMARY}
    if timeline is not None:
        files |= {"perfetto": out / PERFETTO} | ({"chakra": out / CHAKRA} if chakra else {})
    try:
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            temporary = {name: stack.enter_context(replacing(path)) for name, path in files.items()}
            temporary["summary"].write_text(summary.to_json(), encoding="utf-8")
            temporary["report"].write_text(run_page(summary, timeline, ranks=shown), encoding="utf-8")
            if timeline is not None:
                write_perfetto(timeline, shown, temporary["perfetto"])
                if chakra:
                    write_chakra(timeline, shown, temporary["chakra"])
    except OSError as error:
        raise _not_writable(out, error) from error
    return Report(summary=summary, files=files)


def write_page(summary: Summary, timeline: Timeline | None, path: Path, *, ranks: Sequence[int] = ()) -> Path:
    """Write the page of a run to `path`, and nothing else."""
    shown = () if timeline is None else _shown_ranks(summary, timeline, ranks)
    return _write_text(path, run_page(summary, timeline, ranks=shown))


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write one page about several runs, each of which has a `summary.json`; the first is the baseline."""
    summaries = {name: load_summary(folder) for name, folder in zip(_names(folders), folders, strict=True)}
    return _write_text(out, compare_page(summaries))


def _remove(out: Path, what: Sequence[str]) -> None:
    """Remove these files, and temporary ones that a crash left."""
    try:
        for path in (out / _NAMES[name] for name in what if name != "chakra"):
            if not path.is_dir():
                path.unlink(missing_ok=True)
        for path in out.glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if "chakra" in what:
            for path in (out / CHAKRA).glob("rank.*.et"):
                path.unlink()
            if (out / CHAKRA).is_dir() and not any((out / CHAKRA).iterdir()):
                (out / CHAKRA).rmdir()
    except OSError as error:
        raise _not_writable(out, error) from error


def _try_writing(directory: Path) -> None:
    """Make the directory and a file in it, and remove both again."""
    made: list[Path] = []
    try:
        for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
            path.mkdir()
            made.append(path)
        tempfile.TemporaryFile(dir=directory).close()
    finally:
        for path in reversed(made):
            path.rmdir()


def _shown_ranks(summary: Summary, timeline: Timeline, wanted: Sequence[int]) -> tuple[int, ...]:
    slowest = summary.require_timing().breakdown.slowest.rank
    return choose_ranks(timeline, slowest=slowest, wanted=wanted)


def _write_text(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_writable(path, error) from error
    return path


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, as few as tell the runs apart."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise ReportError(
        f"runs to compare must differ, but {', '.join(map(str, folders))} holds one twice; name every directory once"
    )


def _not_writable(path: Path, error: OSError) -> ReportError:
    reason = error.strerror or os.strerror(error.errno or 0)
    return ReportError(
        f"the place of a report must be writable, but {path} cannot be written ({reason}); choose another with --out"
    )
