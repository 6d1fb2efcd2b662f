"""Transformer Engine: NVIDIA's layers for FP8, with kernels of their own for products, norms, attention and casts.

If its Python is installed (`pip install --no-deps transformer_engine` suffices), it runs, and only the compiled module
`transformer_engine_torch` is ours: each function allocates what the kernel returns and records one launch per kernel.

    products.py       matrix products, in FP8 and with bias, GELU and accumulation fused; grouped products
    quantization.py   casts to FP8 by all recipes, with transposes, and what scales need
    layers.py         norms, activations, softmax, rotary embedding, dropout
    attention.py      fused attention and the re-ordering that context parallelism does
    experts.py        permutation, padding and routing for mixtures of experts
    optimizers.py     updates of many tensors
    overlap.py        userbuffers: communication beside the product that it feeds
    enumerations.py   numbers that Python and kernels agree on

If it is not installed, the layers and functions in `modules/` stand in for it, as if it were release 1.12.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.package import Fill, Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]

_BUILDING = "NVTE_PROJECT_BUILDING"
"""The package's setup sets this variable, because while it is built there is nothing to load."""


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="transformer_engine",
        adaptations={"transformer_engine.pytorch.cpp_extensions.fused_attn": _fuse_attention},
        compiled={"transformer_engine.common": _load_common, "transformer_engine_torch": _fill_compiled},
        missing=_missing(),
        version="1.12.0",
    )


def _missing() -> dict[str, Fill]:
    ours = "transformer_engine.modules"
    attention, layers = names_of(f"{ours}.attention"), names_of(f"{ours}.layers", f"{ours}.linear")
    fp8, training = names_of(f"{ours}.recipe"), names_of(f"{ours}.training")
    return {
        "transformer_engine": lambda module: _import_below(module, "common", "pytorch"),
        "transformer_engine.common.recipe": fp8,
        "transformer_engine.pytorch": _fill_pytorch,
        "transformer_engine.pytorch.attention": attention,
        "transformer_engine.pytorch.attention.rope": attention,
        "transformer_engine.pytorch.cpp_extensions": fp8,
        "transformer_engine.pytorch.distributed": training,
        "transformer_engine.pytorch.float8_tensor": fp8,
        "transformer_engine.pytorch.fp8": fp8,
        "transformer_engine.pytorch.module": layers,
        "transformer_engine.pytorch.module.base": layers,
        "transformer_engine.pytorch.optimizers": names_of(f"{ours}.training", "transformer_engine.optimizers"),
    }


def _fill_pytorch(module: ModuleType) -> None:
    parts = ("recipe", "linear", "layers", "attention", "training")
    names_of(*(f"transformer_engine.modules.{part}" for part in parts))(module)
    _import_below(module, "attention", "distributed", "fp8", "module", "optimizers")


def _import_below(module: ModuleType, *names: str) -> None:
    """Import modules of the package, so that they can be reached by attribute."""
    for name in names:
        setattr(module, name, importlib.import_module(f"{module.__name__}.{name}"))


def _load_common(module: ModuleType) -> None:
    """Run the module's own code but for what loads CUDA's libraries and the kernels."""
    spec = PathFinder.find_spec(module.__name__, sys.modules["transformer_engine"].__path__)
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:  # it is not installed
        _import_below(module, "recipe")
        return
    module.__path__ = list(spec.submodule_search_locations)
    module.__file__ = spec.origin
    before = os.environ.get(_BUILDING)
    os.environ[_BUILDING] = "1"
    try:
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del os.environ[_BUILDING]
    module.load_framework_extension = lambda framework: importlib.import_module(f"transformer_engine_{framework}")  # type: ignore[attr-defined]


def _fuse_attention(module: ModuleType) -> None:
    """Replace the two functions above the compiled ones: they have names for their many arguments."""
    from sandtable.vgpu.packages.transformer_engine import attention

    for name in ("fused_attn_fwd", "fused_attn_bwd"):
        setattr(module, name, _by_name(getattr(attention, name), inspect.signature(getattr(module, name))))


def _by_name(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Return a function that may be called as `signature` says, and that calls `function` by keyword."""

    def call(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        return function(**bound.arguments)

    return call


def _fill_compiled(module: ModuleType) -> None:
    from sandtable.vgpu.packages.transformer_engine import (
        attention,
        enumerations,
        experts,
        layers,
        optimizers,
        overlap,
        products,
        quantization,
    )

    for part in (enumerations, quantization, products, layers, attention, experts, optimizers, overlap):
        for name in part.__all__:
            setattr(module, name, getattr(part, name))
    module.__getattr__ = _refuse  # type: ignore[method-assign]


def _refuse(name: str) -> None:
    raise AttributeError(
        f"transformer_engine_torch.{name} must have a replacement to run on a virtual GPU, but there is none; leave "
        "out the option that uses it"
    )
