"""CIFAR-10 in its official binary format: 60,000 colour images of 32 × 32 pixels in ten classes (Krizhevsky 2009).

Five files of training images and one of test images, each a row of 10,000 records: one byte of label, then 1024 bytes
of red, 1024 of green and 1024 of blue, row by row.
"""

import tarfile
from pathlib import Path

import numpy as np

from sandtable.errors import StudyError
from sandtable.study.data.download import Official, download
from sandtable.study.data.image_set import ImageSet, Part

__all__ = ["read_cifar10"]

ARCHIVE = Official(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"
)
FOLDER = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
NUM_CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32

REMEDY = (
    f"unpack {ARCHIVE.url} on a machine with the internet and give the folder that holds {FOLDER}/ as --data FOLDER, "
    "or let this machine reach it"
)


def read_cifar10(folder: Path) -> ImageSet:
    """The data set below `folder` (or in it), downloaded there if it is missing."""
    where = _found(folder) or _fetched(folder)
    parts = [_part(where / name) for name in TRAIN]
    return ImageSet(
        name="cifar10",
        num_classes=NUM_CLASSES,
        train=Part(pixels=[part.pixels[0] for part in parts], labels=np.concatenate([part.labels for part in parts])),
        test=_part(where / TEST),
        mean=(125.3, 123.0, 113.9),
        deviation=(63.0, 62.1, 66.7),
    )


def _part(file: Path) -> Part:
    size = file.stat().st_size
    if size == 0 or size % RECORD_BYTES:
        raise StudyError(
            f"{file} must be records of {RECORD_BYTES} bytes, but it has {size} bytes; "
            "take the binary version of CIFAR-10, and fetch it again if it was cut short"
        )
    records = np.memmap(file, np.uint8, mode="r").reshape(-1, RECORD_BYTES)
    labels = np.array(records[:, 0])
    if (highest := int(labels.max())) >= NUM_CLASSES:
        raise StudyError(
            f"{file}: labels must be below {NUM_CLASSES}, but got {highest}; take the binary version of CIFAR-10"
        )
    return Part(pixels=[records[:, 1:].reshape(-1, 3, 32, 32)], labels=labels)


def _found(folder: Path) -> Path | None:
    """Where the six files are, if they are all there."""
    for place in (folder, folder / FOLDER):
        if all((place / name).is_file() for name in (*TRAIN, TEST)):
            return place
    return None


def _fetched(folder: Path) -> Path:
    archive = download(ARCHIVE, folder, remedy=REMEDY)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    found = _found(folder)
    assert found is not None, f"{archive} has the right checksum but not the six files"
    return found
