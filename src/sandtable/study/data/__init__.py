"""The data sets of a study, by name."""

from pathlib import Path

from sandtable.study.data.cifar10 import read_cifar10
from sandtable.study.data.fashion_mnist import read_fashion_mnist
from sandtable.study.data.image_set import ImageSet, Part
from sandtable.study.data.synthetic import read_synthetic

__all__ = ["ImageSet", "Part", "load_images"]

_READERS = {"cifar10": read_cifar10, "fashion-mnist": read_fashion_mnist, "synthetic": read_synthetic}


def load_images(name: str, folder: Path) -> ImageSet:
    """The data set called `name` below `folder`; it is downloaded or made there if it is missing."""
    return _READERS[name](folder)
