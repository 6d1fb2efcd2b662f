"""kernels (Hugging Face): compiled kernels that are downloaded when a script asks for them by the name of a repository.

`get_kernel("kernels-community/flash-attn3")` returns our replacement of the package that such a repository is built
from, without a network. A repository that has none is an error with its name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]

_INTERFACES = {
    "flash-attn3": ("flash_attn_interface", "flash_attn.flash_attn_interface"),
    "vllm-flash-attn3": ("flash_attn_interface", "flash_attn.flash_attn_interface"),
    "flash-attn2": ("flash_attn.flash_attn_interface",),
    "flash-attn": ("flash_attn.flash_attn_interface",),
}
"""By the name of a repository, the modules that have its functions, the best first.

Who builds a repository chooses its name: `flash-attention-3` is `flash-attn3`.
"""


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""

    def fill(module: ModuleType) -> None:
        vars(module).update(_functions())

    def adapt(module: ModuleType) -> None:
        if hasattr(module, "get_kernel"):  # a script may have a module of that name
            fill(module)

    return Package(name="kernels", adaptations={"kernels": adapt}, missing={"kernels": fill}, version="0.10.0")


def _functions() -> dict[str, Callable[..., Any]]:
    return {
        "get_kernel": _get_kernel,
        "get_local_kernel": lambda path, name, *_, **__: _get_kernel(name),
        "load_kernel": _get_kernel,
        "has_kernel": lambda repository, *_, **__: _name(repository) in _INTERFACES,
    }


def _get_kernel(repository: str, *_: Any, **__: Any) -> Any:
    for module_name in _INTERFACES.get(_name(repository), ()):
        try:
            interface = importlib.import_module(module_name)
        except ImportError:
            continue
        return SimpleNamespace(flash_attn_interface=interface, **_public(interface))
    raise RuntimeError(
        f"the kernels of {repository} must have a replacement to run on a virtual GPU, but there is none; those of "
        f"{', '.join(_INTERFACES)} have one"
    )


def _name(repository: str) -> str:
    name = repository.rpartition("/")[2].lower().replace("_", "-").replace("attention", "attn")
    return re.sub(r"-(\d)$", r"\1", name)


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name.startswith("flash_attn") and callable(value)}
