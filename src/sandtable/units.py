"""Units: the only place where numbers change unit or become text.

Internally everything is integer nanoseconds, bytes and FLOP/s. Memory sizes are shown in binary units (GiB), as torch
shows them; FLOPs, rates and link speeds are decimal (TFLOP, GB/s), as in data sheets.
"""

import re
from collections.abc import Mapping, Sequence

__all__ = [
    "GB",
    "GBIT_BYTES",
    "GIB",
    "KB",
    "KIB",
    "MB",
    "MIB",
    "NS_PER_MS",
    "NS_PER_S",
    "NS_PER_US",
    "TB",
    "TERA",
    "TIB",
    "format_bytes",
    "format_count",
    "format_flops",
    "format_seconds",
    "parse_bytes",
    "parse_rate",
]

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
TERA = 10**12
GBIT_BYTES = 10**9 // 8
NS_PER_US, NS_PER_MS, NS_PER_S = 10**3, 10**6, 10**9

_MINUTE_S, _HOUR_S = 60, 3600

_SIZES = {"B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_RATES = {"bit": 1 / 8, "kbit": KB / 8, "Mbit": MB / 8, "Gbit": GB / 8, "Tbit": TB / 8, **_SIZES}


def format_bytes(num_bytes: int) -> str:
    """Format a size in binary units: `512 B`, `1.50 GiB`."""
    if abs(num_bytes) < KIB:
        return f"{num_bytes} B"
    return _scale(num_bytes / KIB, step=1024, suffixes=("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def format_flops(num_flops: float) -> str:
    """Format a number of floating-point operations in decimal units: `312.00 TFLOP`. Append `/s` for a rate."""
    return _scale(
        num_flops, step=1000, suffixes=("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP", "YFLOP")
    )


def format_seconds(seconds: float) -> str:
    """Format a duration for people: `850 ns`, `12.30 us`, `4.56 ms`, `7.89 s`, `2 min 05 s`, `3 h 07 min`."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if round(seconds * NS_PER_S) < NS_PER_US:
        return f"{round(seconds * NS_PER_S)} ns"
    if round(seconds, 2) < _MINUTE_S:
        return _scale(seconds * 1e6, step=1000, suffixes=("us", "ms", "s"))
    whole_seconds = round(seconds)
    if whole_seconds < _HOUR_S:
        return f"{whole_seconds // _MINUTE_S} min {whole_seconds % _MINUTE_S:02d} s"
    minutes = round(seconds / _MINUTE_S)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_count(count: int) -> str:
    """Format a number of things: with separators while readable (`12,288`), then as in papers (`1.50 M`)."""
    if abs(count) < 10**6:
        return f"{count:,}"
    return _scale(count / 10**6, step=1000, suffixes=("M", "B", "T"))


def parse_bytes(text: str) -> int:
    """Parse a size as people write it, `16GiB` or `1.5 GB`, into bytes."""
    return round(_parse(text, _SIZES, "16GiB"))


def parse_rate(text: str) -> float:
    """Parse a bandwidth as people write it, `10Gbit`, `25 Gbit/s` or `1.2GB/s`, into bytes per second."""
    return _parse(text.strip().removesuffix("/s"), _RATES, "10Gbit")


def _parse(text: str, units: Mapping[str, float], example: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", text.strip())
    if match is None or match[2] not in units:  # by the letter: Gb might be either
        raise ValueError(f"must be a number and one of {', '.join(units)}, but got '{text}'; for example {example}")
    return float(match[1]) * units[match[2]]


def _scale(value: float, *, step: int, suffixes: Sequence[str]) -> str:
    """Format two decimals and the first suffix that keeps the number below `step` (1023.999 KiB becomes 1.00 MiB)."""
    for suffix in suffixes[:-1]:
        if round(abs(value), 2) < step:
            return f"{value:.2f} {suffix}"
        value /= step
    return f"{value:.2f} {suffixes[-1]}"
