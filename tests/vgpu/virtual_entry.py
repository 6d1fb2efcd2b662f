"""The entry module of the tests' fork server: the real runtime, with pytest loaded, which test modules import."""

import importlib

from sandtable.vgpu import preload
from sandtable.vgpu.capture import Capture
from sandtable.vgpu.fork_server import serve
from sandtable.vgpu.rank import Runtime


def load(core_path: str) -> None:
    preload.load(core_path)
    importlib.import_module("pytest")


if __name__ == "__main__":
    serve(Runtime(load=load, start=Capture.start))
