"""The container: whole or not there, and honest about what is wrong with it."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from sandtable.errors import TraceError
from sandtable.trace import archive

HEADER = {"format": "some", "version": 3}


def write(path: Path, *, compress: bool = True) -> None:
    archive.write(path, {"a/b": np.arange(10_000)}, {"header": HEADER, "more": {"x": [1]}}, compress=compress)


@pytest.mark.parametrize("compress", [True, False])
def test_arrays_and_documents_come_back(tmp_path: Path, compress: bool):
    write(tmp_path / "file", compress=compress)
    reader = archive.Reader(tmp_path / "file", family="some", version=3)
    assert reader.array("a/b").tolist() == list(range(10_000))
    assert reader.document("more") == {"x": [1]}


def test_the_same_content_gives_the_same_bytes(tmp_path: Path):
    write(tmp_path / "one")
    write(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "file"
    write(path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        archive.write(path, {}, {"header": object()})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(TraceError, match="create the directory"):
        write(tmp_path / "nowhere" / "file")


def test_another_version_is_refused_with_both_versions(tmp_path: Path):
    write(tmp_path / "file")
    with pytest.raises(TraceError, match=r"must be 4, but .* has version 3; capture the run again"):
        archive.Reader(tmp_path / "file", family="some", version=4)


@pytest.mark.parametrize("content", [b"", b"not a zip", b'{"format": "some"}'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="must be a some file, but"):
        archive.Reader(path, family="some", version=3)


def test_a_zip_of_another_kind_is_refused(tmp_path: Path):
    path = tmp_path / "file"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hello.txt", "hello")
    with pytest.raises(TraceError, match="must be a some file, but"):
        archive.Reader(path, family="some", version=3)
    write(path)
    with pytest.raises(TraceError, match="must be a other file, but"):
        archive.Reader(path, family="other", version=3)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(TraceError, match="No such file"):
        archive.Reader(tmp_path / "file", family="some", version=3)


def test_a_file_cut_short_is_refused(tmp_path: Path):
    path = tmp_path / "file"
    write(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TraceError, match="cut short"):
        archive.Reader(path, family="some", version=3)


def test_a_damaged_member_is_named(tmp_path: Path):
    path = tmp_path / "file"
    write(path, compress=False)
    content = bytearray(path.read_bytes())
    content[content.index(b"\x93NUMPY") + 500] ^= 0xFF
    path.write_bytes(content)
    reader = archive.Reader(path, family="some", version=3)
    with pytest.raises(TraceError, match=r"a/b\.npy"):
        reader.array("a/b")
