"""The entry module of a fork server with the fake runtime."""

from tests.vgpu.fake_runtime import Capture, load

from sandtable.vgpu.fork_server import serve
from sandtable.vgpu.rank import Runtime

if __name__ == "__main__":
    serve(Runtime(load=load, start=Capture.start))
