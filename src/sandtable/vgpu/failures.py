"""Failures: an exception of the script, described on the rank and made a finding by the launcher."""

import functools
import os
import re
import runpy
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, TracebackType

from sandtable.errors import ScriptError
from sandtable.findings import Evidence, Finding, Severity, name_ranks
from sandtable.native import cache_directory
from sandtable.trace import Kind, Phase, RankRecords
from sandtable.vgpu.call_logs import Waiting, describe_call
from sandtable.vgpu.compatibility import torch_directory
from sandtable.vgpu.known_failures import known_failure, worker_failure
from sandtable.vgpu.missing_modules import missing_module_remedy
from sandtable.vgpu.protocol import RankFailed
from sandtable.vgpu.stop import ProcessRejected
from sandtable.vgpu.undescribed import description_remedy, undescribed_call

__all__ = [
    "at_moment",
    "died",
    "exit_code",
    "failure",
    "has_known_cause",
    "is_library",
    "is_missing_file",
    "is_own_crash_frame",
    "library_prefixes",
    "script_error",
    "script_place",
    "script_prefixes",
]

SCRIPT_ERROR = "script-error"
RANK_RAISED = "rank-raised"
OUT_OF_MEMORY = "out-of-memory"
_REJECTED = {
    "process-rejected": "every process that uses the GPU must be a rank, but the script starts one that cannot be",
    "nested-launcher": "ranks must be started once, by the launcher or by the script, but here both start some",
}

_HOLDERS = "Lines of the script that hold the most memory:"
"""Begins the list of lines in the message of the virtual GPU's OutOfMemoryError."""

_CRASH_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_OWN_PREFIX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_KILLED_REMEDY = (
    "the system kills the largest process when this machine runs out of memory: weights and data that the script holds "
    "on the host are really there; try a smaller model or fewer of its layers, or build it on the meta device"
)
_CRASH_REMEDY = (
    "a compiled function that reads the memory of a virtual GPU, which has none, must be described: "
    'write @sandtable.cost("package.function") in a file for --costs (docs/packages.md)'
)

_RAISED_REMEDY = (
    "fix what only this rank runs into; where an error on one rank is expected, let all ranks agree on it by "
    "all_reduce before any of them leaves"
)
_EVALUATION_REMEDY = (
    "the model is in evaluation mode but keeps all activations for a backward pass: evaluate under torch.no_grad(), or "
    "torch.inference_mode()"
)
_MOST_CALLERS = 3
_LOADER_FILES = os.path.join("torch", "utils", "data", "")
_MEMORY_REMEDY = "try smaller micro-batches, activation checkpointing, or sharding parameters and states over ranks"


# ---- on the rank ----


def failure(error: BaseException) -> RankFailed:
    """Describe an exception that ended the script."""
    if isinstance(error, ProcessRejected):
        return RankFailed(
            rule=error.rule,
            exit_code=1,
            traceback="",
            text=error.message,
            file=error.file,
            line=error.line,
            remedy=error.remedy,
        )
    known = known_failure(error, world_size=int(os.environ.get("WORLD_SIZE", "1")))
    in_worker = worker_failure(error)
    words = _last_words(error) if in_worker is None else in_worker[0]
    file, line = _script_line(error)
    if in_worker is not None:
        file, line = next((place for place in reversed(in_worker[1]) if not is_library(place[0])), (file, line))
    rule = OUT_OF_MEMORY if _is_out_of_memory(error) else known.rule if known is not None else SCRIPT_ERROR
    remedy = known.remedy if known is not None else missing_module_remedy(error) or description_remedy(str(error))
    if rule == OUT_OF_MEMORY:
        remedy = _EVALUATION_REMEDY if _keeps_graph_in_evaluation(error) else _MEMORY_REMEDY
    return RankFailed(
        rule=rule,
        exit_code=exit_code(error),
        traceback=_clean_traceback(error),
        text=f"raised {words}" + (f" ({known.because})" if known is not None and known.because else ""),
        file=file,
        line=line,
        remedy=remedy,
        callers=_callers(error) if rule == OUT_OF_MEMORY else (),
        is_data=any(_LOADER_FILES in frame.tb_frame.f_code.co_filename for frame in _frames(error.__traceback__)),
    )


def at_moment(failed: RankFailed, records: RankRecords) -> RankFailed:
    """Add when in the course of training memory ran out: states come with the first update, growth with the steps."""
    if failed.rule != OUT_OF_MEMORY:
        return failed
    if records.num_steps:
        num_steps = "1 step" if records.num_steps == 1 else f"{records.num_steps} steps"
        return failed._replace(moment=f" in step {records.num_steps + 1}, after {num_steps} that fit")
    phases = records.records.phase[records.records.kind == Kind.OPERATOR]
    if len(phases) and phases[-1] == Phase.OPTIMIZER:
        return failed._replace(
            moment=" when the optimizer made its states, after a forward and a backward pass that fit"
        )
    return failed


def exit_code(error: BaseException) -> int:
    """Return the exit code that Python would end with."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def library_prefixes() -> list[str]:
    """Return the directories whose lines are not the user's: torch, the standard library, packages, sandtable."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]  # --user, other venvs
    paths += [str(torch_directory()), str(Path(__file__).parents[1]), str(cache_directory())]
    return sorted({os.path.join(path, "") for path in paths})


def script_prefixes(script: str) -> list[str]:
    """Return the directories of the installed package that `script` belongs to or starts; its lines are the user's.

    `script` is a file, such as that of the command `litgpt`, or the name of a module.
    """
    if os.path.isfile(script):
        if script.endswith(".py"):
            return [os.path.join(os.path.dirname(os.path.abspath(script)), "")] if _is_installed(script) else []
        with open(script, encoding="utf-8", errors="replace") as file:
            started = re.search(r"^from ([\w.]+) import", file.read(), re.MULTILINE)
        module = started[1] if started else ""
    else:
        module = script
    root = module.partition(".")[0]
    try:
        spec = find_spec(root) if root.isidentifier() and root != "torch" else None
    except (ImportError, ValueError):
        return []
    return [os.path.join(path, "") for path in (spec.submodule_search_locations or () if spec is not None else ())]


def is_library(file: str) -> bool:
    """Return whether code of this file is not the user's."""
    if file.startswith("<"):
        return True
    return _is_installed(file) and not os.path.abspath(file).startswith(_script_prefixes(sys.argv[0]))


def script_place() -> tuple[str, int]:
    """Return the line of the user's code that is being executed, as file and line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _is_installed(file: str) -> bool:
    return os.path.abspath(file).startswith(_library_prefixes())


@functools.cache
def _library_prefixes() -> tuple[str, ...]:
    return tuple(library_prefixes())


@functools.cache
def _script_prefixes(script: str) -> tuple[str, ...]:
    return tuple(script_prefixes(script))


def _last_words(error: BaseException) -> str:
    """Return the exception as Python prints it, without the source line of a SyntaxError and without notes.

    TorchScript puts its own traceback before the words of an error inside it; a call to describe is found there.
    """
    words = next(part for part in traceback.format_exception_only(error) if not part.startswith(" ")).strip()
    undescribed = undescribed_call(words)
    return words if undescribed is None else f"{words.partition(':')[0]}: {undescribed[0]}"


def _is_out_of_memory(error: BaseException | None) -> bool:
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    while error is not None and kind is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__
    return False


def _script_line(error: BaseException) -> tuple[str, int]:
    """Find the innermost frame that belongs to the user's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    place = "", 0
    for frame in _frames(error.__traceback__):
        file = frame.tb_frame.f_code.co_filename
        if not is_library(file):
            place = file, frame.tb_lineno
    return place


def _callers(error: BaseException) -> tuple[tuple[str, int], ...]:
    """Return the lines of the user's code that led to the innermost one, the nearest first."""
    frames = [(frame.tb_frame.f_code.co_filename, frame.tb_lineno) for frame in _frames(error.__traceback__)]
    places = dict.fromkeys(place for place in reversed(frames) if not is_library(place[0]))
    return tuple(places)[1 : 1 + _MOST_CALLERS]


def _keeps_graph_in_evaluation(error: BaseException) -> bool:
    """Return whether a module in evaluation mode was called and computed with tensors that have a history."""
    torch = sys.modules["torch"]
    for frame in _frames(error.__traceback__):
        names = frame.tb_frame.f_locals
        module = names.get("self")
        if isinstance(module, torch.nn.Module) and not module.training:
            values = list(names.values())
            if any(isinstance(value, torch.Tensor) and value.grad_fn is not None for value in values):
                return True
    return False


def _clean_traceback(error: BaseException) -> str:
    """Format the script's own traceback, without the frames that led to it."""
    for frame in _frames(error.__traceback__):
        if not _is_ours(frame.tb_frame.f_code.co_filename):
            return "".join(traceback.format_exception(type(error), error, frame))
    return "".join(traceback.format_exception_only(error))  # the script could not be found, read or compiled


def _frames(frame: TracebackType | None) -> Iterator[TracebackType]:
    while frame is not None:
        yield frame
        frame = frame.tb_next


def _is_ours(file: str) -> bool:
    return (
        os.path.dirname(file) == os.path.dirname(__file__)
        or file.startswith("<frozen ")
        or file == getattr(runpy, "__file__", "")
    )


# ---- in the launcher ----


def died(code: int, last_lines: Sequence[str]) -> RankFailed:
    """Describe a process that ended without a report."""
    if code < 0:
        how = f"was ended by signal {-code} ({signal.Signals(-code).name})"
    else:
        how = f"left with os._exit({code}) or the like"
    frames = _crash_frames(list(last_lines))
    file, line, _ = next((frame for frame in frames if not is_library(frame[0])), ("", 0, ""))
    return RankFailed(
        rule=SCRIPT_ERROR,
        exit_code=code if code > 0 else 1,
        traceback="\n".join([*last_lines, f"a rank must end by returning from its script, but its process {how}"]),
        text=f"{how} in a call from {frames[0][2]} ({frames[0][0]}:{frames[0][1]})" if frames else how,
        file=file,
        line=line,
        remedy=_KILLED_REMEDY if code == -signal.SIGKILL else _CRASH_REMEDY if frames else "",
    )


def is_own_crash_frame(text: str) -> bool:
    """Return whether this line, which Python prints when it crashes, names a function that runs the script."""
    match = _CRASH_FRAME.match(text)
    return match is not None and match[1].startswith((_OWN_PREFIX, "<frozen runpy>"))


def _crash_frames(lines: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return file, line and function of the frames that Python printed when it crashed, innermost first."""
    starts = [place for place, line in enumerate(lines) if line.startswith("Fatal Python error: Segmentation fault")]
    matches = map(_CRASH_FRAME.match, lines[starts[-1] :] if starts else ())
    return [(match[1], int(match[2]), match[3]) for match in matches if match is not None]


def is_missing_file(failed: RankFailed) -> bool:
    """Return whether the script failed because a file is not there."""
    return failed.text.startswith("raised FileNotFoundError")


def has_known_cause(failed: RankFailed) -> bool:
    """Return whether a rule says why the script failed, so that no stand-in for a number can be to blame."""
    return failed.rule not in (SCRIPT_ERROR, OUT_OF_MEMORY, "process-rejected")


def script_error(rank: int, failed: RankFailed, waits: Sequence[Waiting] = ()) -> ScriptError:
    """Make the error, with its finding, of a failure on `rank`, for which others may wait in vain."""
    is_out_of_memory = failed.rule == OUT_OF_MEMORY
    if failed.rule == SCRIPT_ERROR and waits:
        return _rank_raised(rank, failed, waits)
    if is_out_of_memory:
        message = f"rank {rank} ran out of GPU memory{failed.moment}"
        evidence = tuple(_memory_evidence(rank, failed))
    elif failed.rule in _REJECTED:
        message = _REJECTED[failed.rule]
        evidence = (Evidence(ranks=(rank,), text=failed.text, file=failed.file, line=failed.line),)
    else:
        message = f"the script failed on rank {rank} with exit code {failed.exit_code}"
        text = failed.text.partition("\n")[0]
        evidence = (Evidence(ranks=(rank,), text=text, file=failed.file, line=failed.line),)
    finding = Finding(
        rule=failed.rule,
        severity=Severity.ERROR,
        message=message,
        ranks=(rank,),
        evidence=evidence,
        remedy=failed.remedy,
    )
    return ScriptError(finding, failed.traceback, failed.exit_code)


def _rank_raised(rank: int, failed: RankFailed, waits: Sequence[Waiting]) -> ScriptError:
    """Make the error of a rank that failed where others, on which the script goes on, wait for it."""
    places: dict[tuple[str, str, int], list[int]] = {}
    for wait in waits:
        call = wait.call
        places.setdefault((describe_call(call), call.file, call.line), []).append(wait.rank)
    waiting = [
        Evidence(ranks=tuple(ranks), text=f"{'wait' if len(ranks) > 1 else 'waits'} in {text}", file=file, line=line)
        for (text, file, line), ranks in places.items()
    ]
    others = tuple(sorted(wait.rank for wait in waits))
    words = failed.text.partition("\n")[0]
    finding = Finding(
        rule=RANK_RAISED,
        severity=Severity.ERROR,
        message=f"the script failed on rank {rank} with exit code {failed.exit_code}, while {name_ranks(others)} "
        f"{'wait' if len(others) > 1 else 'waits'} for it",
        ranks=(rank, *others),
        evidence=(Evidence(ranks=(rank,), text=words, file=failed.file, line=failed.line), *waiting),
        remedy=failed.remedy or _RAISED_REMEDY,
    )
    return ScriptError(finding, failed.traceback, failed.exit_code)


def _memory_evidence(rank: int, failed: RankFailed) -> Iterator[Evidence]:
    """Yield where the allocation failed, and the lines that hold the most memory."""
    summary, _, holders = failed.text.partition(_HOLDERS)
    yield Evidence(ranks=(rank,), text=summary.partition(". GPU")[0].strip(), file=failed.file, line=failed.line)
    for row in holders.strip().splitlines():
        size, _, place = row.strip().partition("  ")
        file, _, rest = place.strip().rpartition(":")
        number = rest.partition(" ")[0]
        is_line = bool(file) and number.isdigit()
        yield Evidence(
            ranks=(rank,),
            text=f"holds {size}" if is_line else f"holds {size} {place}".rstrip(),
            file=file if is_line else "",
            line=int(number) if is_line else 0,
        )
    for file, line in failed.callers:
        yield Evidence(ranks=(rank,), text="was on the way from here", file=file, line=line)
