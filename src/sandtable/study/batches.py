"""Batches of one worker: its share of each epoch's order, converted from bytes to model inputs.

All workers draw the same order of the whole data set from (seed, epoch), and each of P workers takes every P-th image.
Together they see every image once per epoch, and no two see the same one. Every worker does the same number of steps;
the few images that do not fill a step of all workers are left for another epoch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sandtable.study.data import ImageSet, ImageSplit
from sandtable.study.data.image_set import Pixels

__all__ = ["Batches", "as_input", "batches_of", "shifted"]

_SHIFT = 2
"""The largest shift of an augmented image, in pixels, in each direction."""

_TEST_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The images that one of several workers trains on."""

    images: ImageSet
    rank: int
    workers: int
    batch: int
    seed: int
    augment: bool
    share: float = 1.0

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps that fill a batch of every worker; at least one, with fewer images if necessary."""
        return max(1, self.num_images // (self.batch * self.workers))

    def epoch(
        self, number: int, *, with_inputs: Callable[[int], bool] = lambda _: True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets step by step; inputs are empty at steps where `with_inputs` is false."""
        order = np.random.default_rng((self.seed, number)).permutation(self.num_images)
        own = order[self.rank :: self.workers]
        random = np.random.default_rng((self.seed, number, self.rank))
        for step in range(self.steps_per_epoch):
            indices = own[step * self.batch : (step + 1) * self.batch]
            if not with_inputs(step):
                yield torch.empty(0), torch.from_numpy(self.images.train.labels[indices].astype(np.int64))
                continue
            pixels, labels = self.images.train.take(indices)
            if self.augment:
                pixels = shifted(pixels, random)
            yield as_input(pixels, self.images), torch.from_numpy(labels)

    def test_share(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this worker's part of the test images."""
        own = np.arange(self.rank, len(self.images.test), self.workers)
        yield from batches_of(self.images.test, own, self.images)

    @property
    def num_images(self) -> int:
        """The number of images in an epoch."""
        return max(1, round(len(self.images.train) * self.share))


def batches_of(split: ImageSplit, indices: NDArray[np.int64], images: ImageSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the images at `indices`, not augmented, in batches small enough for many workers at once."""
    for start in range(0, len(indices), _TEST_BATCH):
        pixels, labels = split.take(indices[start : start + _TEST_BATCH])
        yield as_input(pixels, images), torch.from_numpy(labels)


def as_input(pixels: Pixels, images: ImageSet) -> Tensor:
    """Convert bytes to floats of mean 0 and deviation 1 per channel, channels last, which suits convolutions."""
    mean = torch.tensor(images.mean).view(1, -1, 1, 1)
    deviation = torch.tensor(images.deviation).view(1, -1, 1, 1)
    values = torch.from_numpy(pixels).to(torch.float32, memory_format=torch.channels_last)
    return values.sub_(mean).div_(deviation)


def shifted(pixels: Pixels, random: np.random.Generator) -> Pixels:
    """Mirror every second image, and shift each by up to two pixels: the usual augmentation, on bytes."""
    count, channels, height, width = pixels.shape
    mirror = random.random(count) < 0.5
    pixels[mirror] = pixels[mirror][..., ::-1]
    wide = np.zeros((count, channels, height + 2 * _SHIFT, width + 2 * _SHIFT), np.uint8)
    wide[:, :, _SHIFT:-_SHIFT, _SHIFT:-_SHIFT] = pixels
    down, right = random.integers(0, 2 * _SHIFT + 1, (2, count))
    return np.stack([image[:, y : y + height, x : x + width] for image, y, x in zip(wide, down, right, strict=True)])
