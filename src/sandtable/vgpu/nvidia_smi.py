"""`nvidia-smi` of the rehearsed node: a program on the PATH of ranks, which frameworks run to ask about cards.

It answers `nvidia-smi`, `-L`, `--query-gpu=... --format=csv`, `--query-compute-apps` and `topo -m` for the cards that
the environment describes. Sensors read 1, as unknown values do on a virtual GPU, and no memory is in use. This file
runs as a program by itself, and so needs nothing but Python's own modules.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["CARDS", "DRIVER_VERSION", "answer"]

CARDS = "SANDTABLE_CARDS"
"""The variable that describes the node's cards, as JSON."""

DRIVER_VERSION = "580.65.06"
_REFUSED = ("-x", "--xml-format", "nvlink", "dmon", "pmon", "mig", "conf-compute", "-p2p")
_CUDA_VERSION = "13.0"
_MIB = 1 << 20

_UNANSWERED = (
    *("serial", "gpu_serial", "vbios_version", "mig.mode.pending", "driver_model.current", "display_active"),
    *("ecc.mode.current", "ecc.mode.pending", "ecc.errors.corrected.volatile.total"),
    *("ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.active", "clocks_event_reasons.active"),
    *("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max"),
    *("pci.device_id", "pci.domain", "pci.bus", "pci.device", "power.max_limit", "power.default_limit"),
)
"""Fields that a card has, but nothing here knows."""

Card = Mapping[str, Any]

_FIELDS: Mapping[str, tuple[Callable[[Card], object], str]] = {
    "timestamp": (lambda card: time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
    "driver_version": (lambda card: DRIVER_VERSION, ""),
    "count": (lambda card: card["count"], ""),
    "index": (lambda card: card["index"], ""),
    "name": (lambda card: card["name"], ""),
    "gpu_name": (lambda card: card["name"], ""),
    "uuid": (lambda card: card["uuid"], ""),
    "gpu_uuid": (lambda card: card["uuid"], ""),
    "pci.bus_id": (lambda card: card["bus_id"], ""),
    "gpu_bus_id": (lambda card: card["bus_id"], ""),
    "compute_cap": (lambda card: card["capability"], ""),
    "compute_mode": (lambda card: "Default", ""),
    "persistence_mode": (lambda card: "Enabled", ""),
    "mig.mode.current": (lambda card: "Disabled", ""),
    "pstate": (lambda card: "P0", ""),
    "memory.total": (lambda card: card["memory_bytes"] // _MIB, " MiB"),
    "memory.free": (lambda card: card["memory_bytes"] // _MIB, " MiB"),
    "memory.used": (lambda card: 0, " MiB"),
    "memory.reserved": (lambda card: 0, " MiB"),
    **dict.fromkeys(("utilization.gpu", "utilization.memory", "fan.speed"), (lambda card: 1, " %")),
    **dict.fromkeys(("temperature.gpu", "temperature.memory"), (lambda card: 1, "")),
    **dict.fromkeys(("power.draw", "power.limit", "enforced.power.limit"), (lambda card: "1.00", " W")),
    **{
        f"clocks.{kind}{unit}": (lambda card: 1, " MHz")
        for kind in ("", "current.", "max.")
        for unit in ("sm", "gr", "graphics", "mem", "memory", "video")
    },
    **dict.fromkeys(_UNANSWERED, (lambda card: "[N/A]", "")),
}  # fmt: skip
"""By the name of a field: its value for a card, and the unit."""


def answer(arguments: Sequence[str], cards: Sequence[Card]) -> tuple[int, str]:
    """Return exit code and output of `nvidia-smi` with these arguments."""
    options = _options(arguments)
    chosen = _chosen(options, cards)
    if "topo" in options and "-p2p" not in options:
        return 0, _topology(cards)
    if "-L" in options or "--list-gpus" in options:
        return 0, "".join(f"GPU {card['index']}: {card['name']} (UUID: {card['uuid']})\n" for card in chosen)
    fields = options.get("--query-gpu")
    if fields is not None:
        return _query([name.strip() for name in fields.split(",")], options.get("--format", "csv"), chosen)
    if any(name.startswith("--query-") for name in options):
        return 0, ""  # no processes
    refused = [word for word in arguments if word in _REFUSED]
    if refused:
        return 2, f"nvidia-smi {refused[0]} is not answered in a rehearsal, whose cards are virtual\n"
    return 0, _overview(chosen)


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the options with their values, whether these follow a space or an equals sign."""
    options: dict[str, str] = {}
    last = ""
    for argument in arguments:
        if argument.startswith("-") or not last:
            last, _, value = argument.partition("=")
            last = {"-i": "--id", "-q": "--query"}.get(last, last)
            options[last] = value
        else:
            options[last] = argument
    return options


def _chosen(options: Mapping[str, str], cards: Sequence[Card]) -> Sequence[Card]:
    named = options.get("--id", "")
    if not named:
        return cards
    names = {name.strip() for name in named.split(",")}
    return [card for card in cards if names & {str(card["index"]), card["uuid"], card["bus_id"]}]


def _query(names: Sequence[str], form: str, cards: Sequence[Card]) -> tuple[int, str]:
    unknown = [name for name in names if name not in _FIELDS]
    if unknown:
        return 2, f'Field "{unknown[0]}" is not a valid field to query.\n\n'
    words = [word.strip() for word in form.split(",")]
    units = [_FIELDS[name][1] for name in names]
    head = [name + (f" [{unit.strip()}]" if unit else "") for name, unit in zip(names, units, strict=True)]
    rows = [] if "noheader" in words else [", ".join(head)]
    for card in cards:
        values = [str(_FIELDS[name][0](card)) for name in names]
        if "nounits" not in words:
            values = [value + unit for value, unit in zip(values, units, strict=True)]
        rows.append(", ".join(values))
    return 0, "".join(f"{row}\n" for row in rows)


def _topology(cards: Sequence[Card]) -> str:
    names = [f"GPU{card['index']}" for card in cards]
    rows = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for name, card in zip(names, cards, strict=True):
        between = card["link"]
        rows.append("\t".join([name, *(" X " if other == name else between for other in names), "", "N/A"]))
    legend = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    return "\n".join(rows) + "\n" + legend


def _overview(cards: Sequence[Card]) -> str:
    line = "+" + "-" * 77 + "+\n"
    title = f"NVIDIA-SMI {DRIVER_VERSION}   Driver Version: {DRIVER_VERSION}   CUDA Version: {_CUDA_VERSION}"
    rows = [f"| {title:<75} |\n", line]
    for card in cards:
        memory = f"0MiB / {card['memory_bytes'] // _MIB}MiB"
        rows.append(f"| {card['index']:>3}  {card['name']:<28} {card['bus_id']}  {memory:>22} |\n")
    return line + "".join(rows) + line


if __name__ == "__main__":
    code, text = answer(sys.argv[1:], json.loads(os.environ.get(CARDS, "[]")))
    sys.stdout.write(text)
    sys.exit(code)
