"""Known failures: exceptions that have one cause on a cluster, whatever the script is. They get a rule and a remedy."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

__all__ = ["KnownFailure", "known_failure", "worker_failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """The rule that a failed script has broken, and what to write instead; `because` may follow torch's own words."""

    rule: str
    remedy: str
    because: str = ""


_BY_MESSAGE: tuple[tuple[str, KnownFailure], ...] = (
    (
        r"No backend type associated with device type cpu|Tensors must be CUDA and dense",
        KnownFailure(
            rule="wrong-device-for-nccl",
            because="NCCL moves tensors on the card, but this one is in host memory",
            remedy="move the tensor first, as in tensor.to(torch.cuda.current_device()), or give the process group a "
            'backend for both: init_process_group("cpu:gloo,cuda:nccl")',
        ),
    ),
    (
        r"^Tensors must be contiguous",
        KnownFailure(
            rule="non-contiguous-tensor",
            because="NCCL moves one stretch of memory, but in this view elements do not follow one another",
            remedy="communicate tensor.contiguous(), and if the tensor is also the result, copy it back: "
            "tensor.copy_(buffer)",
        ),
    ),
    (
        r"Cannot re-initialize CUDA in forked subprocess",
        KnownFailure(
            rule="cuda-after-fork",
            because="a forked process inherits the state of CUDA, but not its connection to the card",
            remedy="keep data on the CPU in workers and move each batch in the training loop with "
            '.to(device, non_blocking=True); or start workers afresh: multiprocessing_context="spawn"',
        ),
    ),
    (
        r"invalid device ordinal",
        KnownFailure(
            rule="wrong-device-index",
            because="GPUs are numbered from 0 on every node",
            remedy='choose the GPU by the rank within the node, int(os.environ["LOCAL_RANK"]), not by the rank in '
            "the job; and start no more ranks per node than it has GPUs and CUDA_VISIBLE_DEVICES shows",
        ),
    ),
    (
        r"Expected to have finished reduction in the prior iteration",
        KnownFailure(
            rule="unused-parameters",
            remedy="let every parameter take part in every loss, take those that do not out of the model or set "
            "requires_grad_(False) before DDP wraps it; or give DistributedDataParallel find_unused_parameters=True",
        ),
    ),
    (
        r"Expected to mark a variable ready only once",
        KnownFailure(
            rule="gradient-ready-twice",
            remedy="add the losses and call backward() once per forward pass; recompute with "
            "checkpoint(..., use_reentrant=False); where the graph is the same in every step, static_graph=True of "
            "DistributedDataParallel permits re-entrant checkpoints",
        ),
    ),
    (
        r"Mesh should not be bigger than default world size",
        KnownFailure(
            rule="world-size-not-divisible",
            because="the axes of a mesh multiplied must be the world size",
            remedy="derive one axis from the world size, dp = world_size // (tp * pp), and start that many ranks",
        ),
    ),
    (
        r"(?i)world.?size.*(divisib|divide|multiple|must (be )?equal|does not match|!=)"
        r"|(divisib|multiple|must (be )?equal|!=|number of).*world.?size",
        KnownFailure(
            rule="world-size-not-divisible",
            remedy="start as many ranks as the parallel axes multiplied (tp * pp * dp ...), or change an axis so that "
            "their product divides the number of ranks",
        ),
    ),
)

_WORKER = re.compile(r"^Caught (\w+) in DataLoader worker process (\d+)\.")
_WORKER_FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)


def known_failure(error: BaseException, *, world_size: int) -> KnownFailure | None:
    """Return what is known of the cause, from what the exception says or from the check that raised it."""
    for pattern, failure in _BY_MESSAGE:
        if re.search(pattern, str(error)):
            return failure
    if isinstance(error, AssertionError | ValueError | RuntimeError):
        return _failed_division(error.__traceback__, world_size)
    return None


def worker_failure(error: BaseException) -> tuple[str, list[tuple[str, int]]] | None:
    """Return what a DataLoader's worker raised, and the lines that led there, if that is what ended the script."""
    match = _WORKER.match(str(error))
    if match is None:
        return None
    lines = str(error).strip().splitlines()
    last = next((line for line in reversed(lines) if line.startswith(match[1])), match[1])
    frames = [(file, int(line)) for file, line in _WORKER_FRAME.findall(str(error))]
    return f"{last} [DataLoader worker {match[2]}]", frames


def _failed_division(frames: TracebackType | None, world_size: int) -> KnownFailure | None:
    """Return the failure if the check of the script that raised takes the world size modulo something else."""
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is None or world_size <= 1:
        return None
    for divisor, text in _divisors(frames.tb_frame, frames.tb_lineno, world_size):
        if divisor and world_size % divisor:
            return KnownFailure(
                rule="world-size-not-divisible",
                because=f"{text} is {divisor}, which does not divide the {world_size} ranks",
                remedy=f"start a multiple of {divisor} ranks, or change {text} so that it divides {world_size}",
            )
    return None


def _divisors(frame: FrameType, line: int, world_size: int) -> Iterator[tuple[int, str]]:
    """Yield the value and the text of what the failed statement divides the world size by."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    # A raise is inside the condition that it belongs to.
    statements = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert | ast.If) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    names = {**frame.f_globals, **frame.f_locals}
    for statement in statements:
        for node in ast.walk(statement.test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _value(node.left, names) == world_size:
                divisor = _value(node.right, names)
                if divisor is not None:
                    yield divisor, ast.unparse(node.right)


def _value(node: ast.expr, names: Mapping[str, Any]) -> int | None:
    """Return the number that a product of names and numbers is; None for everything else. Nothing is called."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            values = _value(left, names), _value(right, names)
            return None if values[0] is None or values[1] is None else values[0] * values[1]
        case ast.Call(func=ast.Attribute(attr="get_world_size") | ast.Name(id="get_world_size"), args=[]):
            return _world_size()
    named = _named(node, names)
    return named if isinstance(named, int) else None


def _named(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what a name, an attribute or an item of a dictionary holds; None where that would run code."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=holder, attr=attribute):
            held = _named(holder, names)
            return getattr(held, "__dict__", {}).get(attribute) if held is not None else None
        case ast.Subscript(value=holder, slice=ast.Constant(value=key)):
            held = _named(holder, names)
            return held.get(key) if isinstance(held, dict) else None
    return None


def _world_size() -> int | None:
    import torch.distributed as dist

    return int(dist.get_world_size()) if dist.is_initialized() else None
