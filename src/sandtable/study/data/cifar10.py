"""CIFAR-10 in its official binary format: 60,000 colour images of 32 × 32 pixels in ten classes (Krizhevsky 2009).

There are five files of training images and one of test images, each with 10,000 records: one byte for the label, then
1024 bytes each of red, green and blue, row by row.
"""

import tarfile
from pathlib import Path

import numpy as np

from sandtable.errors import StudyError
from sandtable.study.data.download import Official, download
from sandtable.study.data.image_set import ImageSet, ImageSplit

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
    f"unpack {ARCHIVE.url} on a machine with internet access and pass the folder that contains {FOLDER}/ as "
    "--data FOLDER, or give this machine access"
)


def read_cifar10(folder: Path) -> ImageSet:
    """Read the data set in `folder` or below it; download it there if it is missing."""
    location = _find(folder) or _download(folder)
    parts = [_read_file(location / name) for name in TRAIN]
    return ImageSet(
        name="cifar10",
        num_classes=NUM_CLASSES,
        train=ImageSplit(
            pixels=[part.pixels[0] for part in parts], labels=np.concatenate([part.labels for part in parts])
        ),
        test=_read_file(location / TEST),
        mean=(125.3, 123.0, 113.9),
        deviation=(63.0, 62.1, 66.7),
    )


def _read_file(file: Path) -> ImageSplit:
    size = file.stat().st_size
    if size == 0 or size % RECORD_BYTES:
        raise StudyError(
            f"{file} must consist of records of {RECORD_BYTES} bytes, but has {size} bytes; "
            "use the binary version of CIFAR-10, and download it again if it is incomplete"
        )
    records = np.memmap(file, np.uint8, mode="r").reshape(-1, RECORD_BYTES)
    labels = np.array(records[:, 0])
    if (highest := int(labels.max())) >= NUM_CLASSES:
        raise StudyError(
            f"{file}: labels must be below {NUM_CLASSES}, but got {highest}; use the binary version of CIFAR-10"
        )
    return ImageSplit(pixels=[records[:, 1:].reshape(-1, 3, 32, 32)], labels=labels)


def _find(folder: Path) -> Path | None:
    """Return the folder with the six files, if all exist."""
    for candidate in (folder, folder / FOLDER):
        if all((candidate / name).is_file() for name in (*TRAIN, TEST)):
            return candidate
    return None


def _download(folder: Path) -> Path:
    archive = download(ARCHIVE, folder, remedy=REMEDY)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    location = _find(folder)
    assert location is not None, f"{archive} has the right checksum but not the six files"
    return location
