"""Archive: the container of a trace on disk.

One zip file of numpy arrays (`.npy`) and JSON documents; any zip tool and `numpy.load` can look inside. A file is
written beside its destination and moved there once complete, so half a file is never seen. The same content gives
the same bytes: members carry no time stamps.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.errors import TraceError

__all__ = ["HEADER", "Reader", "write"]

HEADER = "header"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LEVEL = 4


def write(
    path: str | PathLike[str],
    arrays: Mapping[str, npt.NDArray[Any]],
    documents: Mapping[str, Any],
    *,
    compress: bool = False,
) -> None:
    """Write the file in one move. `documents` must hold a "header" with the keys "format" and "version"."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with zipfile.ZipFile(partial, "w") as file:
            for name, document in documents.items():
                _add(file, f"{name}.json", json.dumps(document, separators=(",", ":")).encode(), compress)
            for name, array in arrays.items():
                _add(file, f"{name}.npy", _encode(array), compress)
        os.replace(partial, path)
    except OSError as error:
        raise TraceError(
            f"the directory of a trace must be writable, but {path} could not be written ({error.strerror}); "
            "create the directory, free some space or choose another one"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


class Reader:
    """A file written by `write`. Opening it reads the list of members and the header; the rest is read on demand."""

    def __init__(self, path: str | PathLike[str], *, family: str, version: int) -> None:
        self.path = Path(path)
        self._file = _open(self.path, family)
        self.header: dict[str, Any] = _header(self._file, self.path, family)
        if self.header.get("version") != version:
            raise TraceError(
                f"version of a {family} file must be {version}, but {self.path} has version "
                f"{self.header.get('version')}; capture the run again with this version of sandtable, or read the file "
                "with the version that wrote it"
            )

    def document(self, name: str) -> Any:
        return json.loads(self._member(f"{name}.json"))

    def array(self, name: str) -> npt.NDArray[Any]:
        return np.lib.format.read_array(BytesIO(self._member(f"{name}.npy")), allow_pickle=False)

    def _member(self, name: str) -> bytes:
        try:
            return self._file.read(name)
        except (KeyError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
            raise TraceError(
                f"a trace must be complete, but {name} of {self.path} is missing or damaged ({error}); "
                "copy the file again or capture the run again"
            ) from error


def _open(path: Path, family: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise _not_one(path, family) from error
    except OSError as error:
        raise TraceError(
            f"a trace must be a readable file, but {path} is not ({error.strerror}); "
            "pass the file that `sandtable run --out` wrote"
        ) from error


def _header(file: zipfile.ZipFile, path: Path, family: str) -> dict[str, Any]:
    try:
        header = json.loads(file.read(f"{HEADER}.json"))
    except (KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _not_one(path, family) from error
    if not isinstance(header, dict) or header.get("format") != family:
        raise _not_one(path, family)
    return header


def _not_one(path: Path, family: str) -> TraceError:
    return TraceError(
        f"the file must be a {family} file, but {path} is not one or is cut short; "
        "pass the file that `sandtable run --out` wrote, or capture the run again"
    )


def _add(file: zipfile.ZipFile, name: str, content: bytes, compress: bool) -> None:
    info = zipfile.ZipInfo(name, date_time=_EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    file.writestr(info, content, compresslevel=_LEVEL if compress else None)


def _encode(array: npt.NDArray[Any]) -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()
