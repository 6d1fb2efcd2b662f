"""What one operator costs on the virtual GPU, against torch's FakeTensorMode.

    python bench/vgpu.py
    python bench/vgpu.py --quick

Both run the same training step, eagerly: forward, backward and AdamW of examples/gpt_model.py, bfloat16, the same sizes
and optimizer. Each lives in a process of its own, with one thread, warm (three steps before the first that counts; the
fake tensors' cache is filled), and the two take turns in one run. The figures are medians.

The virtual GPU records what it does, as in a capture. Fake tensors are on the CPU of an untouched torch: that is the
cheapest they can be, for fake CUDA tensors need a CUDA build, or the virtual GPU under them.

Operators are counted in one more step, which is not timed, by a TorchDispatchMode: every call of an aten operator that
reaches a backend, views included. The counts of the two sides must be equal, so the ratio is also that of the whole
steps. The last line is a JSON object:

operators             aten operators in a step
vgpu_us_per_op        microseconds for each of them on the virtual GPU
faketensor_us_per_op  the same under FakeTensorMode
ratio                 how many times less the virtual GPU costs
vgpu_step_ms, faketensor_step_ms  the whole step
"""

import argparse
import contextlib
import gc
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
WARM_UP_STEPS = 3
STEPS_A_TURN = 3
SIDES = ("vgpu", "faketensor")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},  # what AdamW chooses by itself on a GPU
    "fused": {"fused": True},
    "loop": {"foreach": False},
}


def main() -> None:
    """Let the two sides take turns, then print the figures."""
    args = parse_arguments()
    if args.side:
        serve(args)
        return
    sides = {side: Side(side, args) for side in SIDES}
    try:
        counts = {name: side.count_operators() for name, side in sides.items()}
        if counts["vgpu"] != counts["faketensor"]:
            sys.exit(f"bench/vgpu.py: both sides must run the same operators, but they run {counts}")
        times: dict[str, list[float]] = {name: [] for name in SIDES}
        for turn in range(args.turns):
            for name in SIDES if turn % 2 == 0 else reversed(SIDES):
                times[name] += sides[name].take_turn()
    finally:
        for side in sides.values():
            side.close()
    print(json.dumps(figures_of(times, num_operators=counts["vgpu"])))


def figures_of(times: dict[str, list[float]], *, num_operators: int) -> dict[str, Any]:
    """Medians, by operator."""
    vgpu, fake = median(times["vgpu"]), median(times["faketensor"])
    return {
        "operators": num_operators,
        "vgpu_us_per_op": round(vgpu / num_operators * 1e6, 2),
        "faketensor_us_per_op": round(fake / num_operators * 1e6, 2),
        "ratio": round(fake / vgpu, 1),
        "vgpu_step_ms": round(vgpu * 1e3, 2),
        "faketensor_step_ms": round(fake * 1e3, 2),
        "steps": len(times["vgpu"]),
    }


class Side:
    """The process that runs one side; it answers each line with a line."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--side", name, "--size", args.size, "--batch", str(args.batch)]
        self._process = subprocess.Popen(
            [*command, "--optimizer", args.optimizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def count_operators(self) -> int:
        """Wait until the side is warm, and ask how many operators its step has."""
        return int(self._ask("count"))

    def take_turn(self) -> list[float]:
        """The seconds of a few steps."""
        seconds: list[float] = json.loads(self._ask("turn"))
        return seconds

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, question: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(question, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit("bench/vgpu.py: a side ended early; its error is above")
        return answer


def serve(args: argparse.Namespace) -> None:
    """One side: make the model, warm up, then answer until the input ends."""
    if args.side == "vgpu":
        become_virtual_gpu()
    import torch

    torch.set_num_threads(1)
    mode: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    device = "cuda"
    if args.side == "faketensor":
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode, device = FakeTensorMode(), "cpu"
    with mode:
        step = make_step(args, device)
        for _ in range(WARM_UP_STEPS):
            step()
        gc.collect()
        gc.freeze()
        for question in sys.stdin:
            answer = count_operators(step) if question == "count\n" else [time_step(step) for _ in range(STEPS_A_TURN)]
            print(json.dumps(answer), flush=True)


def become_virtual_gpu() -> None:
    """Put the virtual GPU under torch and start to record, as a captured rank does, alone in its world."""
    from sandtable.cluster import load
    from sandtable.vgpu import core_path, preload

    preload.load(str(core_path()))
    from sandtable.vgpu.capture import Capture
    from sandtable.vgpu.exchange import Exchange
    from sandtable.vgpu.settings import RankSettings

    cluster = load("dgx-a100")
    settings = RankSettings(
        rank=0,
        local_rank=0,
        world_size=1,
        local_world_size=1,
        group_rank=0,
        num_steps=sys.maxsize,
        max_operators=sys.maxsize,
        device=cluster.device,
        gpus_per_node=cluster.gpus_per_node,
    )
    Capture.start(settings, Exchange(socket.socketpair()[0], 0))


def make_step(args: argparse.Namespace, device: str) -> Callable[[], None]:
    """A training step of the GPT on a batch that stays the same."""
    sys.path.insert(0, str(EXAMPLES))
    import torch
    from gpt_model import GPT, SIZES, cross_entropy  # type: ignore[import-not-found]

    config = SIZES[args.size]
    torch.set_default_dtype(torch.bfloat16)  # not model.to(): that swaps parameters, which fake ones do not allow
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
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def count_operators(step: Callable[[], None]) -> int:
    """Calls of aten operators in one step, below autograd."""
    from torch.utils._python_dispatch import TorchDispatchMode

    total = 0

    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Counts; prim and profiler calls, which only FakeTensorMode or the optimizer's label make, are left out."""

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
    parser.add_argument("--size", default="124m", help="model, by its name in examples/gpt_model.py (default 124m)")
    parser.add_argument("--batch", type=int, default=1, help="samples a step (default 1)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="foreach", help="AdamW's form (default foreach)")
    parser.add_argument("--turns", type=int, help=f"turns of each side, of {STEPS_A_TURN} steps each (default 8)")
    parser.add_argument("--quick", action="store_true", help="2 turns")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.turns = args.turns or (2 if args.quick else 8)
    return args


if __name__ == "__main__":
    main()
