"""Wheels without files, and a build backend that makes one: enough for pip to install, and nothing to download."""

import zipfile
from pathlib import Path


def build_editable(directory: str, settings: object = None, metadata: object = None) -> str:
    """Build a project's wheel, as PEP 660 has it."""
    return write_wheel(directory, "sandtable", "1", requires="torch>=2.12").name


def write_wheel(folder: str | Path, name: str, version: str, *, requires: str = "") -> Path:
    """Write a wheel without files."""
    info, path = f"{name}-{version}.dist-info", Path(folder, f"{name}-{version}-py3-none-any.whl")
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path
