"""Measure operators on this machine's device, and the cost of Python between them.

python -m sandtable.lab.probes.operators INPUT OUTPUT: INPUT is a JSON list of signatures. OUTPUT receives {"rows":
[[signature, ns]], "standard": [[signature, ns]], "skipped": {operator: times}, "host": {...}, "device": {...}}.
"""

import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from sandtable.lab.probes.clocks import Clock, clock_for, time_calls
from sandtable.lab.probes.replay import MOVES, Unrunnable, make_calls
from sandtable.lab.probes.standard import standard_signatures

NO_COPY_NS = 200.0
"""Moving a tensor to the device it is on: torch returns the same tensor."""


def main() -> None:
    """Measure everything in one process."""
    source, target = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clock = clock_for(device)
    with open(source, encoding="utf-8") as file:
        wanted: list[str] = json.load(file)
    rows, skipped = measure(wanted, clock, device)
    standard, _ = measure(standard_signatures(), clock, device)
    result = {
        "rows": rows,
        "standard": standard,
        "skipped": dict(skipped),
        "host": host_costs(clock, device),
        "device": describe(device, clock),
    }
    with open(target, "w", encoding="utf-8") as file:
        json.dump(result, file)


def measure(signatures: list[str], clock: Clock, device: torch.device) -> tuple[list[Any], Counter[str]]:
    """Time each operator that can run here, and count the others by name."""
    rows: list[Any] = []
    skipped: Counter[str] = Counter()
    with torch.no_grad():
        for text in signatures:
            name = json.loads(text)["op"]
            if name in MOVES and device.type == "cpu":
                rows.append([text, NO_COPY_NS])
                continue
            try:
                with torch.enable_grad():  # the backward pass of attention needs autograd
                    calls = make_calls(text, device)
                rows.append([text, time_calls(clock, calls) * 1e9])
            except (Unrunnable, RuntimeError, TypeError, AttributeError, NotImplementedError):
                skipped[name] += 1
    return rows, skipped


def host_costs(clock: Clock, device: torch.device) -> dict[str, float]:
    """Measure nanoseconds of Python and bookkeeping per operator, beyond the bare operator, by phase.

    A stack of layers on almost no data takes nothing but overhead. Per layer, forward runs 3 operators (norm, product,
    activation), and backward 5 and the accumulation of 4 gradients; an AdamW step runs 12 per parameter.
    """
    num_layers, width = 16, 8
    layers = [
        torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.GELU())
        for _ in range(num_layers)
    ]
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.rand(2, width, device=device)
    small = torch.rand(2, width, device=device)
    loss = model(x).sum()
    params = list(model.parameters())

    def back() -> None:
        torch.autograd.grad(loss, params, retain_graph=True)

    bare = time_calls(clock, [lambda: torch.ops.aten.mul.Tensor(small, small)])
    forward = time_calls(clock, [lambda: model(x)])
    backward = time_calls(clock, [back])
    for param in params:
        param.grad = torch.zeros_like(param)
    one_by_one = torch.optim.AdamW(params, foreach=False)
    together = torch.optim.AdamW(params, foreach=True)
    apart_s = time_calls(clock, [one_by_one.step])
    together_s = time_calls(clock, [together.step])
    excess = {
        "forward_ns": forward / (3 * num_layers) - bare,
        "backward_ns": backward / (5 * num_layers) - bare,
        "optimizer_ns": bare,
        "tensor_ns": (apart_s - together_s) / (12 * len(params)),
        "bare_ns": bare,
    }
    return {name: max(0.0, seconds * 1e9) for name, seconds in excess.items()}


def describe(device: torch.device, clock: Clock) -> dict[str, Any]:
    """Describe the device, with the fields of `MeasuredDevice`."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {
            "type": "cuda",
            "name": properties.name,
            "vendor": "amd" if torch.version.hip else "nvidia",
            "capability": [properties.major, properties.minor],
            "num_sms": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "shared_per_block_bytes": getattr(properties, "shared_memory_per_block_optin", 49152),
            "shared_per_sm_bytes": getattr(properties, "shared_memory_per_multiprocessor", 49152),
            "threads": 1,
            "share": 1.0,
        }
    return {
        "type": "cpu",
        "name": cpu_name(),
        "vendor": "cpu",
        "capability": [8, 0],
        "num_sms": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "l2_bytes": cache_bytes(),
        "threads": torch.get_num_threads(),
        "share": clock.share,
    }


def cache_bytes() -> int:
    """Return the largest cache of the first processor, as Linux reports it; 1 MiB if it does not."""
    sizes = [1 << 20]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes)


def cpu_name() -> str:
    """Return the processor's name, as Linux reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
