"""Readers of the official formats, on small files in these formats."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from sandtable.errors import StudyError
from sandtable.study.data import cifar10, download, fashion_mnist, load_images, synthetic
from sandtable.study.data.download import Official


def write_cifar(folder: Path, *, count: int = 3) -> np.ndarray:
    """Six files of `count` records; returns all training records."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    rows = []
    for name in (*cifar10.TRAIN, cifar10.TEST):
        records = random.integers(0, 256, (count, cifar10.RECORD_BYTES), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
        rows.append(records)
    return np.concatenate(rows[:-1])


def write_idx(file: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    with gzip.open(file, "wb") as out:
        out.write(head + array.tobytes())


def write_fashion(folder: Path, *, labels: int = 4) -> np.ndarray:
    pixels = np.random.default_rng(2).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.arange(labels, dtype=np.uint8))
    return pixels


def test_cifar10_is_read_as_planes_of_colour(tmp_path: Path) -> None:
    records = write_cifar(tmp_path / cifar10.FOLDER)
    images = load_images("cifar10", tmp_path)
    assert (len(images.train), len(images.test), images.shape) == (15, 3, (3, 32, 32))
    pixels, labels = images.train.take(np.array([14, 0, 7]))
    assert labels.tolist() == records[[14, 0, 7], 0].tolist()
    assert (pixels.reshape(3, -1) == records[[14, 0, 7], 1:]).all()
    assert pixels[1, 2, 31, 31] == records[0, -1]  # the last byte is the last blue pixel


def test_cifar10_is_mapped_and_not_read(tmp_path: Path) -> None:
    write_cifar(tmp_path / "here")
    images = load_images("cifar10", tmp_path / "here")  # the folder itself is good too
    base = images.train.pixels[0]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)


def test_cifar10_cut_short_is_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path / cifar10.FOLDER)
    with (tmp_path / cifar10.FOLDER / cifar10.TEST).open("ab") as file:
        file.write(b"x")
    with pytest.raises(StudyError, match="must consist of records of 3073 bytes, but has 9220 bytes"):
        load_images("cifar10", tmp_path)


def test_missing_data_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Official(url=(tmp_path / "nothing.tar.gz").as_uri(), md5="0")
    monkeypatch.setattr(cifar10, "ARCHIVE", nowhere)
    with pytest.raises(StudyError, match=r"--data FOLDER, or give this machine access"):
        load_images("cifar10", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_download_is_checked_and_kept(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(b"abc")
    good = Official(url=source.as_uri(), md5="900150983cd24fb0d6963f7d28e17f72")
    assert download.download(good, tmp_path / "out", remedy="r").read_bytes() == b"abc"
    bad = Official(url=source.as_uri(), md5="1" * 32)
    with pytest.raises(StudyError, match="must have the checksum 1111"):
        download.download(bad, tmp_path / "other", remedy="r")
    assert list((tmp_path / "other").iterdir()) == []


def test_fashion_mnist_is_read_from_idx_files(tmp_path: Path) -> None:
    pixels = write_fashion(tmp_path)
    images = load_images("fashion-mnist", tmp_path)
    assert images.shape == (1, 28, 28)
    found, labels = images.train.take(np.array([3, 1]))
    assert (found[:, 0] == pixels[[3, 1]]).all()
    assert labels.tolist() == [3, 1]
    assert (tmp_path / "train-images-idx3-ubyte").exists()  # unpacked once, so that it can be mapped


def test_fashion_mnist_with_a_wrong_head_or_count_is_refused(tmp_path: Path) -> None:
    write_fashion(tmp_path, labels=3)
    with pytest.raises(StudyError, match="one label per image"):
        load_images("fashion-mnist", tmp_path)
    (tmp_path / fashion_mnist.FILES[0].name.removesuffix(".gz")).write_bytes(b"nonsense")
    with pytest.raises(StudyError, match="must be an idx file of bytes"):
        load_images("fashion-mnist", tmp_path)


def test_synthetic_images_are_the_same_every_time(tmp_path: Path) -> None:
    first = load_images("synthetic", tmp_path / "a")
    second = load_images("synthetic", tmp_path / "b")
    assert (first.train.pixels[0][:50] == second.train.pixels[0][:50]).all()
    assert (len(first.train), len(first.test)) == (synthetic.NUM_TRAIN, synthetic.NUM_TEST)
