"""Queries about the node past torch: the program `nvidia-smi` on the PATH, which describes the rehearsed cards."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from sandtable.native import cache_directory
from sandtable.vgpu import nvidia_smi
from sandtable.vgpu.settings import RankSettings

__all__ = ["bus_id", "card_uuid", "offer_nvidia_smi"]


def offer_nvidia_smi(settings: RankSettings) -> None:
    """Put the program first on this process's PATH, with a description of the node's cards in the environment."""
    os.environ[nvidia_smi.CARDS] = json.dumps(_cards(settings), separators=(",", ":"))
    folder = str(_program().parent)
    paths = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if folder not in paths:
        os.environ["PATH"] = os.pathsep.join([folder, *paths])


def card_uuid(index: int) -> str:
    """Return the identity of a card as NVIDIA's tools print it."""
    return f"GPU-00000000-0000-0000-0000-{index + 1:012x}"


def bus_id(index: int) -> str:
    """Return a card's address on the bus as NVIDIA's tools print it."""
    return f"00000000:{index + 1:02X}:00.0"


def _cards(settings: RankSettings) -> list[dict[str, Any]]:
    device = settings.device
    return [
        {
            "index": index,
            "count": settings.num_gpus,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "capability": f"{device.major}.{device.minor}",
            "uuid": card_uuid(index),
            "bus_id": bus_id(index),
            "link": "NV18" if settings.has_nvlink else "PHB",
        }
        for index in range(settings.num_gpus)
    ]


def _program() -> Path:
    """Return the program, which is made once per Python and installation."""
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E {shlex.quote(nvidia_smi.__file__)} "$@"\n'
    folder = cache_directory() / f"programs-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    program = folder / "nvidia-smi"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Written under another name, because ranks may come here at the same time.
        descriptor, scratch = tempfile.mkstemp(dir=folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(scratch, 0o755)
        os.replace(scratch, program)
    return program
