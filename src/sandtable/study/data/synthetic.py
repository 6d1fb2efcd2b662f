"""Images generated from a seed, for quick runs: noisy stripes in ten classes, five directions times two widths.

The directions span a quarter turn, so that a mirrored image does not look like another class. The images are easy
enough that a small network learns them in an epoch or two, and hard enough that it does not in a step. They are kept in
a file, so that workers map them like real data.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sandtable.study.data.image_set import ImageSet, ImageSplit, Pixels

__all__ = ["read_synthetic"]

NUM_CLASSES = 10
NUM_TRAIN, NUM_TEST = 4000, 1000
_SIDE = 32
_VERSION = 1


def read_synthetic(folder: Path) -> ImageSet:
    """Read the data set from `folder`; generate it there if it is missing."""
    pixels, labels = _load_or_draw(folder, f"synthetic-v{_VERSION}")
    return ImageSet(
        name="synthetic",
        num_classes=NUM_CLASSES,
        train=ImageSplit(pixels=[pixels[:NUM_TRAIN]], labels=labels[:NUM_TRAIN]),
        test=ImageSplit(pixels=[pixels[NUM_TRAIN:]], labels=labels[NUM_TRAIN:]),
        mean=(127.5,) * 3,
        deviation=(64.0,) * 3,
    )


def _load_or_draw(folder: Path, name: str) -> tuple[Pixels, NDArray[np.uint8]]:
    file = folder / f"{name}.npy"
    labels = np.arange(NUM_TRAIN + NUM_TEST, dtype=np.int64) % NUM_CLASSES
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=folder, suffix=".npy")
        with os.fdopen(handle, "wb") as out:
            np.save(out, _draw(labels))
        Path(part).replace(file)
    return np.load(file, mmap_mode="r"), labels.astype(np.uint8)


def _draw(labels: NDArray[np.int64]) -> Pixels:
    random = np.random.default_rng(20_26)
    angle = np.pi / 2 * (labels % 5) / 4
    frequency = np.where(labels < 5, 0.6, 1.4)[:, None, None]
    row, column = np.mgrid[0:_SIDE, 0:_SIDE]
    along = np.cos(angle)[:, None, None] * row + np.sin(angle)[:, None, None] * column
    phase = random.uniform(0, 2 * np.pi, (len(labels), 1, 1))
    stripes = 60 * np.sin(frequency * along + phase)
    tint = random.uniform(0.5, 1.5, (len(labels), 3, 1, 1))
    noise = random.normal(0, 30, (len(labels), 3, _SIDE, _SIDE))
    pixels: Pixels = np.clip(127.5 + tint * stripes[:, None] + noise, 0, 255).astype(np.uint8)
    return pixels
