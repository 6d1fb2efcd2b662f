"""Compare the cost of an operator on the virtual GPU with FakeTensorMode's, or with that in another checkout.

    python bench/vgpu.py
    python bench/vgpu.py --quick
    git worktree add OLD REVISION && python bench/vgpu.py --against OLD

Both run the same training step eagerly: forward, backward and AdamW of examples/gpt_model.py in bfloat16. Each has a
process of its own with one thread, and three warm-up steps, which fill the cache of the fake tensors. The two take
turns in one run. The figures are medians.

Of two checkouts, which differ by little, one pair of processes does not decide: where a process happens to have its
memory changes its speed by a few percent. So there are several rounds, each with new processes, and the ratio is the
median of theirs.

The virtual GPU is a rank of an ordinary launch, and records what it does. The fake tensors are on the CPU of an
unmodified torch, their cheapest form: fake CUDA tensors need a CUDA build or the virtual GPU.

A TorchDispatchMode counts the operators in another step, which is not timed: every call of an aten operator that
reaches a backend, views included. Both sides must have the same count, so the ratio holds for the whole step as well.
The last line is a JSON object:

operators             aten operators per step
vgpu_us_per_op        microseconds per operator on the virtual GPU
faketensor_us_per_op  microseconds per operator under FakeTensorMode
ratio                 faketensor_us_per_op / vgpu_us_per_op
vgpu_step_ms, faketensor_step_ms  the whole step
steps                 steps timed on each side

and with --against, with "against" in the place of "faketensor":

ratio                 vgpu_us_per_op / against_us_per_op, the median of all rounds
ratios                the same of each round
"""

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Empty, Queue
from statistics import median
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
WARM_UP_STEPS = 3
STEPS_PER_TURN = 3
SIDES = ("vgpu", "faketensor", "against")
RANK_FLAG = "--as-rank"
ENDED_EARLY = "bench/vgpu.py: a side ended early; its error is above"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},  # AdamW's own choice on a GPU
    "fused": {"fused": True},
    "loop": {"foreach": False},
}


def main() -> None:
    """Let the two sides take turns, then print the figures."""
    args = parse_arguments()
    if args.side:
        start_side(args)
    elif args.against:
        print(json.dumps(compare_checkouts(args)))
    else:
        count, times = take_turns(args, ("vgpu", "faketensor"))
        vgpu, fake = median(times["vgpu"]), median(times["faketensor"])
        print(json.dumps(figures_of(times, num_operators=count) | {"ratio": round(fake / vgpu, 1)}))


def compare_checkouts(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of this checkout and the other one."""
    total: dict[str, list[float]] = {"vgpu": [], "against": []}
    ratios = []
    for _ in range(args.rounds):
        count, times = take_turns(args, ("vgpu", "against"))
        ratios.append(median(times["vgpu"]) / median(times["against"]))
        print(f"round {len(ratios)} of {args.rounds}: {ratios[-1]:.3f}", file=sys.stderr, flush=True)
        for name, seconds in times.items():
            total[name] += seconds
    ratio = {"ratio": round(median(ratios), 3), "ratios": [round(ratio, 3) for ratio in sorted(ratios)]}
    return figures_of(total, num_operators=count) | ratio


def take_turns(args: argparse.Namespace, names: tuple[str, str]) -> tuple[int, dict[str, list[float]]]:
    """Start both sides; return the operators per step and, by side, the seconds of its steps."""
    with tempfile.TemporaryDirectory(prefix="sandtable-bench-") as directory, contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(contextlib.closing(Side(name, args, Path(directory)))) for name in names}
        counts = {name: side.count_operators() for name, side in sides.items()}
        if len(set(counts.values())) > 1:
            sys.exit(f"bench/vgpu.py: both sides must run the same operators, but they run {counts}")
        times: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(args.turns):
            for name in names if turn % 2 == 0 else reversed(names):
                times[name] += sides[name].take_turn()
    return counts["vgpu"], times


def figures_of(times: dict[str, list[float]], *, num_operators: int) -> dict[str, Any]:
    """Return the medians."""
    steps = {name: median(seconds) for name, seconds in times.items()}
    per_operator = {f"{name}_us_per_op": round(step / num_operators * 1e6, 2) for name, step in steps.items()}
    whole = {f"{name}_step_ms": round(step * 1e3, 2) for name, step in steps.items()}
    return {"operators": num_operators} | per_operator | whole | {"steps": len(times["vgpu"])}


class Side:
    """The process that runs one side. It answers each request with one JSON value."""

    def __init__(self, name: str, args: argparse.Namespace, directory: Path) -> None:
        self._listener = Listener(str(directory / name), "AF_UNIX")
        command = [sys.executable, __file__, "--side", name, "--address", str(self._listener.address)]
        command += ["--size", args.size, "--batch", str(args.batch), "--optimizer", args.optimizer]
        environment = dict(os.environ)
        if name == "against":
            environment["PYTHONPATH"] = str(args.against.resolve() / "src")
        self._process = subprocess.Popen(command, env=environment)
        self._connection: Connection | None = None

    def count_operators(self) -> int:
        """Wait until the side is warm, and return the number of operators in its step."""
        return int(self._request(Request.COUNT))

    def take_turn(self) -> list[float]:
        """Return the seconds of a few steps."""
        seconds: list[float] = self._request(Request.TURN)
        return seconds

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        self._process.wait()

    def _accept(self) -> Connection:
        """Return the connection once the side has called, unless its process ends first."""
        accepted: Queue[Connection] = Queue()
        threading.Thread(target=lambda: accepted.put(self._listener.accept()), daemon=True).start()
        while self._process.poll() is None:
            with contextlib.suppress(Empty):
                return accepted.get(timeout=0.05)
        sys.exit(ENDED_EARLY)

    def _request(self, request: "Request") -> Any:
        self._connection = self._connection or self._accept()
        try:
            self._connection.send(request.value)
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.wait()
            sys.exit(ENDED_EARLY)


class Request(StrEnum):
    """A request to a side."""

    COUNT = "count"
    TURN = "turn"


def start_side(args: argparse.Namespace) -> None:
    """Run one side in this process, or on a virtual GPU."""
    if args.side == "faketensor" or RANK_FLAG in sys.argv:
        serve(args)
        return
    from sandtable.cluster import load
    from sandtable.errors import SandtableError
    from sandtable.vgpu import Job, launch

    job = Job(
        script=__file__,
        script_args=(*sys.argv[1:], RANK_FLAG),
        world_size=1,
        nproc_per_node=1,
        cluster=load("dgx-a100"),
        num_steps=sys.maxsize,
        max_operators=sys.maxsize,
    )
    try:
        launch(job)
    except SandtableError as error:
        sys.exit(f"bench/vgpu.py: {error}")


def serve(args: argparse.Namespace) -> None:
    """Make the model, warm up, then answer requests until the other end closes."""
    import torch

    torch.set_num_threads(1)
    mode: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    device = "cuda"
    if args.side == "faketensor":
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode, device = FakeTensorMode(), "cpu"
    with mode, Client(args.address, "AF_UNIX") as connection, contextlib.suppress(EOFError):
        step = make_step(args, device)
        for _ in range(WARM_UP_STEPS):
            step()
        gc.collect()
        gc.freeze()
        while True:
            request = Request(connection.recv())
            counts = request is Request.COUNT
            connection.send(count_operators(step) if counts else [time_step(step) for _ in range(STEPS_PER_TURN)])


def make_step(args: argparse.Namespace, device: str) -> Callable[[], None]:
    """Return a training step of the GPT on a fixed batch."""
    sys.path.insert(0, str(EXAMPLES))
    import torch
    from gpt_model import GPT, SIZES, cross_entropy  # type: ignore[import-not-found]

    config = SIZES[args.size]
    torch.set_default_dtype(torch.bfloat16)  # not model.to(), which swaps parameters; fake ones cannot be swapped
    with torch.device(device):
        model = GPT(config)
        tokens = torch.zeros(args.batch, config.seq_len, dtype=torch.int64)
        targets = torch.zeros_like(tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, **OPTIMIZERS[args.optimizer])

    def step() -> None:
        cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def time_step(step: Callable[[], None]) -> float:
    """Return the seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def count_operators(step: Callable[[], None]) -> int:
    """Count the calls of aten operators in one step, below autograd."""
    from torch.utils._python_dispatch import TorchDispatchMode

    total = 0

    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Ignores prim and profiler calls, which only FakeTensorMode and the optimizer's label make."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal total
            total += func.namespace == "aten"
            return func(*args, **(kwargs or {}))

    with Count():  # type: ignore[no-untyped-call]
        step()
    return total


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="model, by its name in examples/gpt_model.py (default 124m)")
    parser.add_argument("--batch", type=int, default=1, help="samples per step (default 1)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="foreach", help="AdamW's form (default foreach)")
    parser.add_argument("--against", type=Path, help="another checkout of sandtable, instead of FakeTensorMode")
    parser.add_argument("--rounds", type=int, help="rounds with --against (default 9)")
    parser.add_argument(
        "--turns", type=int, help=f"turns of each side, of {STEPS_PER_TURN} steps each (default 8; with --against 40)"
    )
    parser.add_argument("--quick", action="store_true", help="2 turns of the tiny model, unless given")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument(RANK_FLAG, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.turns = args.turns or (2 if args.quick else 40 if args.against else 8)
    args.rounds = args.rounds or (2 if args.quick else 9)
    args.size = args.size or ("tiny" if args.quick else "124m")
    return args


if __name__ == "__main__":
    main()
