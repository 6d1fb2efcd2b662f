"""Runs an example and writes down what it did, step by step: every collective with its bytes, and the FLOPs.

    torchrun --standalone --nproc-per-node 4 tests/examples/count_work.py OUT examples/gpt_3d.py --tp 2 ...

An independent witness for formulas.py: it watches torch's dispatcher on CPU with gloo, and shares no code with the
product. Each rank writes OUT/<rank>.json: a list of steps, each {"calls": {"op/bytes_in/bytes_out/group size":
count}, "flops": n}.
"""

import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode


class CountWork(TorchDispatchMode):
    """Adds up collectives and matrix products until the next optimizer step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.begin_step()

    def begin_step(self) -> None:
        """A new page."""
        self.steps.append({"calls": Counter(), "flops": 0, "parameters": 0})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # let DTensor take the operator apart, then see the parts
        namespace, _, name = str(func).partition(".")
        name = name.partition(".")[0]
        if namespace in ("c10d", "_c10d_functional"):
            self.count_call(name, args)
        out = func(*args, **(kwargs or {}))
        if namespace == "aten":
            self.steps[-1]["flops"] += flops(name, args, out)
        return out

    def count_call(self, name: str, args: Any) -> None:
        """Bytes in and out of this rank."""
        match name:
            case "allreduce_" | "all_reduce" | "all_reduce_" | "broadcast_":
                size = num_bytes(args[0])
                key = ("broadcast" if name == "broadcast_" else "all_reduce", size, size)
            case "_allgather_base_":
                key = ("all_gather", num_bytes(args[1]), num_bytes(args[0]))
            case "_reduce_scatter_base_":
                key = ("reduce_scatter", num_bytes(args[1]), num_bytes(args[0]))
            case "all_gather_into_tensor":
                key = ("all_gather", num_bytes(args[0]), num_bytes(args[0]) * args[1])
            case "reduce_scatter_tensor":
                key = ("reduce_scatter", num_bytes(args[0]), num_bytes(args[0]) // args[2])
            case "send":
                key = ("send", num_bytes(args[0]), 0)
            case "recv_":
                key = ("recv", 0, num_bytes(args[0]))
            case "wait_tensor" | "_wrap_tensor_autograd":
                return
            case _:
                key = (name, 0, 0)
        self.steps[-1]["calls"]["/".join(map(str, key))] += 1


def num_bytes(tensors: Any) -> int:
    """Of a tensor or a list of them."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(num_bytes, tensors))


def flops(name: str, args: Any, out: Any) -> int:
    """2 m n k for each matrix product; the attention of the CPU counts as 2 products forward and 5 backward."""
    match name:
        case "mm" | "bmm":
            return int(2 * args[0].numel() * args[1].shape[-1])
        case "addmm":
            return int(2 * args[1].numel() * args[2].shape[-1])
        case "convolution":
            return int(2 * out.numel() * args[1][0].numel())
        case "convolution_backward":
            products = int(args[10][0]) + int(args[10][1])
            return int(2 * args[0].numel() * args[2][0].numel()) * products
        case "_scaled_dot_product_flash_attention_for_cpu":
            return 2 * attention_product(args[0])
        case "_scaled_dot_product_flash_attention_for_cpu_backward":
            return 5 * attention_product(args[1])
    return 0


def attention_product(q: torch.Tensor) -> int:
    """One product of [batch, heads, seq, size] with the square of the sequence."""
    batch, heads, seq, size = q.shape
    return 2 * batch * heads * seq * seq * size


def main() -> None:
    """Run the example that the command line names."""
    out, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(script).parent))
    count = CountWork()

    def end_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        count.steps[-1]["parameters"] = sum(
            getattr(p, "_local_tensor", p).numel() for group in optimizer.param_groups for p in group["params"]
        )
        count.begin_step()

    register_optimizer_step_post_hook(end_step)
    with count:
        runpy.run_path(script, run_name="__main__")
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(count.steps))


if __name__ == "__main__":
    main()
