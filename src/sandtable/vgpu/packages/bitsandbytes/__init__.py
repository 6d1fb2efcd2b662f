"""bitsandbytes: weights of 4 and 8 bits, and optimizers with states of 8 bits.

Its wheel installs anywhere (`pip install --no-deps bitsandbytes`), so it is used where it is installed. Its operators
are torch's; only the module with their kernels for CUDA, which calls a shared library, is ours.
"""

import logging
from types import ModuleType

from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="bitsandbytes",
        adaptations={"bitsandbytes.consts": _silence_loader},
        compiled={"bitsandbytes.backends.cuda.ops": _implement},
    )


def _silence_loader(module: ModuleType) -> None:
    """Keep the package from reporting that its library for CUDA cannot be loaded: it is not needed."""
    logging.getLogger("bitsandbytes.cextension").disabled = True


def _implement(module: ModuleType) -> None:
    from sandtable.vgpu.packages.bitsandbytes import kernels

    module.__dict__["library"] = kernels.implement_all()
