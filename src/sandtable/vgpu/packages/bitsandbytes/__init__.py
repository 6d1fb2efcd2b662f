"""bitsandbytes: weights of 4 and 8 bits, and optimizers with states of 8 bits.

Its wheel installs anywhere (`pip install --no-deps bitsandbytes`), so it is used where it is installed. Its operators
are torch's; only the module with their kernels for CUDA, which calls a shared library, is ours. Where it is missing, so
are its layers and optimizers.
"""

import importlib
import logging
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="bitsandbytes",
        adaptations={"bitsandbytes.consts": _silence_loader, "bitsandbytes.functional": _keep_pages_on_the_card},
        compiled={"bitsandbytes.backends.cuda.ops": _implement},
        version="0.50.2",
        missing={
            "bitsandbytes": _fill,
            "bitsandbytes.nn": names_of("bitsandbytes.layers"),
            "bitsandbytes.functional": names_of("bitsandbytes.layers"),
            "bitsandbytes.optim": _fill_optimizers,
            "bitsandbytes.optim.optimizer": names_of("bitsandbytes.base_optimizers"),
        },
    )


def _fill(module: ModuleType) -> None:
    names_of("bitsandbytes.layers")(module)
    for name in ("nn", "functional", "optim"):
        setattr(module, name, importlib.import_module(f"bitsandbytes.{name}"))


def _fill_optimizers(module: ModuleType) -> None:
    from sandtable.vgpu.packages.bitsandbytes.optimizers import GlobalOptimManager, optimizer_classes

    vars(module).update(optimizer_classes(), GlobalOptimManager=GlobalOptimManager)


def _silence_loader(module: ModuleType) -> None:
    """Keep the package from reporting that its library for CUDA cannot be loaded: it is not needed."""
    logging.getLogger("bitsandbytes.cextension").disabled = True


def _keep_pages_on_the_card(module: Any) -> None:
    """Have tensors of paged optimizers, which CUDA moves between host and card as it needs, be on the card."""
    import torch

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = "cuda") -> Any:
        paged: Any = torch.empty(shape, dtype=dtype, device=device)
        paged.is_paged, paged.page_deviceid = True, paged.device.index
        return paged

    module.get_paged = get_paged
    module.prefetch_tensor = lambda tensor, to_cpu=False: None
    module.fill = lambda tensor, value, device=None, prefetch=True: tensor.fill_(value)


def _implement(module: ModuleType) -> None:
    from sandtable.vgpu.packages.bitsandbytes import kernels

    module.__dict__["library"] = kernels.implement_all()
