"""Download files from their official source and verify their checksums, or explain how else to get them."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from sandtable.errors import StudyError

__all__ = ["Official", "download"]

_CHUNK = 1 << 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Official:
    """A file as its authors publish it. They publish MD5, which detects a broken download, not a forged one."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def download(file: Official, folder: Path, *, remedy: str) -> Path:
    """Return the file in `folder`, downloaded if it is missing. It appears complete and verified, or not at all."""
    target = folder / file.name
    if target.exists() and _md5(target) == file.md5:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out, urllib.request.urlopen(file.url, timeout=_TIMEOUT_S) as answer:
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
        if (checksum := _md5(part)) != file.md5:
            raise StudyError(f"{file.url} must have the checksum {file.md5}, but got {checksum}; {remedy}")
        part.replace(target)
    except (OSError, urllib.error.URLError) as error:
        raise StudyError(
            f"{file.name} must be in {folder} or available from {file.url}, but it is not in the folder and "
            f"downloading it failed: {error}; {remedy}"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
