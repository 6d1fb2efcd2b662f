"""Labelled images on disk, mapped as bytes and shared by all processes that map them.

The files are mapped, not read: sixty workers on one machine share one copy of the data set in the page cache. A pixel
stays one byte until its batch is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ImageSet", "ImageSplit", "Pixels"]

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSplit:
    """Training or test images: one or more mapped arrays (images, channels, height, width) with their labels."""

    pixels: Sequence[Pixels]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> tuple[Pixels, NDArray[np.int64]]:
        """Copy the images and labels at `indices` out of the mapped files, in that order."""
        out = np.empty((len(indices), *self.pixels[0].shape[1:]), np.uint8)
        first = 0
        for array in self.pixels:
            here = np.flatnonzero((indices >= first) & (indices < first + len(array)))
            out[here] = array[indices[here] - first]
            first += len(array)
        return out, self.labels[indices].astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """A data set. `mean` and `deviation` are per channel, of the training images' bytes."""

    name: str
    num_classes: int
    train: ImageSplit
    test: ImageSplit
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.pixels[0].shape[1:]
        return channels, height, width
