"""Fashion-MNIST in the idx format of MNIST: 70,000 grey images of 28 × 28 pixels in ten classes (Xiao et al. 2017).

An idx file is a header of big-endian numbers (two zero bytes, the type 8 for bytes, the number of axes, then the length
of each axis) followed by the data. The files are published compressed; each is unpacked once, so that it can be mapped.
"""

import gzip
import os
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np

from sandtable.errors import StudyError
from sandtable.study.data.download import Official, download
from sandtable.study.data.image_set import ImageSet, ImageSplit, Pixels

__all__ = ["read_fashion_mnist"]

_SOURCE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FILES = tuple(
    Official(url=f"{_SOURCE}/{name}.gz", md5=md5)
    for name, md5 in (
        ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310"),
    )
)
NUM_CLASSES = 10

REMEDY = (
    f"download the four .gz files from {_SOURCE} on a machine with internet access and pass their folder as "
    "--data FOLDER, or give this machine access"
)


def read_fashion_mnist(folder: Path) -> ImageSet:
    """Read the data set in `folder` or in fashion-mnist/ below it; download it there if it is missing."""
    location = folder / "fashion-mnist" if (folder / "fashion-mnist").is_dir() else folder
    train_pixels, train_labels, test_pixels, test_labels = (_map_idx(_unpack(file, location)) for file in FILES)
    return ImageSet(
        name="fashion-mnist",
        num_classes=NUM_CLASSES,
        train=_split(train_pixels, train_labels, location),
        test=_split(test_pixels, test_labels, location),
        mean=(72.9,),
        deviation=(90.0,),
    )


def _split(pixels: Pixels, labels: Pixels, location: Path) -> ImageSplit:
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        raise StudyError(
            f"{location}: there must be one label per image, but got shapes {labels.shape} and {pixels.shape}; {REMEDY}"
        )
    return ImageSplit(pixels=[pixels[:, None]], labels=np.array(labels))


def _map_idx(file: Path) -> Pixels:
    """Map an idx file in the shape that its header gives."""
    with file.open("rb") as stream:
        header = stream.read(4)
        axes = header[3] if len(header) == 4 else 0
        lengths = stream.read(4 * axes)
    if len(header) < 4 or header[:3] != b"\x00\x00\x08" or not axes or len(lengths) < 4 * axes:
        raise StudyError(f"{file} must be an idx file of bytes, but its header is {header!r}; {REMEDY}")
    shape = struct.unpack(f">{axes}I", lengths)
    actual, expected = file.stat().st_size - 4 - 4 * axes, int(np.prod(shape))
    if actual != expected:
        raise StudyError(f"{file} must have {expected} bytes after its header, but has {actual}; {REMEDY}")
    return np.memmap(file, np.uint8, mode="r", offset=4 + 4 * axes, shape=shape)


def _unpack(file: Official, folder: Path) -> Path:
    target = folder / file.name.removesuffix(".gz")
    if target.is_file():
        return target
    packed = folder / file.name
    if not packed.is_file():
        packed = download(file, folder, remedy=REMEDY)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as out, gzip.open(packed) as source:
            shutil.copyfileobj(source, out)
        Path(name).replace(target)
    except (OSError, EOFError) as error:
        raise StudyError(f"{packed} must be a complete gzip file, but: {error}; {REMEDY}") from None
    finally:
        Path(name).unlink(missing_ok=True)
    return target
