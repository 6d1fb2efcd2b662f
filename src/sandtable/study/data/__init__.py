"""The data sets of a study, by name."""

from pathlib import Path

from sandtable.study.data.cifar10 import read_cifar10
from sandtable.study.data.fashion_mnist import read_fashion_mnist
from sandtable.study.data.image_set import ImageSet, ImageSplit
from sandtable.study.data.synthetic import read_synthetic

__all__ = ["ImageSet", "ImageSplit", "load_images"]

_READERS = {"cifar10": read_cifar10, "fashion-mnist": read_fashion_mnist, "synthetic": read_synthetic}


def load_images(name: str, folder: Path) -> ImageSet:
    """Load the data set called `name` from `folder`; download or generate it there if it is missing."""
    return _READERS[name](folder)
