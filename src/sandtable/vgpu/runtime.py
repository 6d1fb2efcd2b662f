"""The entry module of the fork server: it serves ranks on the virtual GPU."""

from sandtable.vgpu.capture import Capture
from sandtable.vgpu.fork_server import serve
from sandtable.vgpu.preload import load
from sandtable.vgpu.rank import Runtime

if __name__ == "__main__":
    serve(Runtime(load=load, start=Capture.start))
