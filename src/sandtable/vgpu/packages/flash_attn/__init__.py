"""FlashAttention 2: exact attention by tiles, and the small fused kernels that come with it.

If flash_attn is installed, its Python code runs, and only `flash_attn_2_cuda` is replaced. If not, the public functions
are those of the files here. Either way attention is the operators that flash_attn itself registers with torch
(`flash_attn::_flash_attn_forward` and three more), with the memory that its C++ code allocates around them.
"""

import importlib
from contextlib import suppress
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.package import Fill, Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    empty = names_of()
    return Package(
        name="flash_attn",
        version="2.8.3",
        adaptations={"flash_attn.flash_attn_interface": _add_workspaces},
        compiled={
            "dropout_layer_norm": _lazily("fill_norms"),
            "flash_attn_2_cuda": names_of("flash_attn.compiled"),
            "rotary_emb": _lazily("fill_rotary"),
            "xentropy_cuda_lib": _lazily("fill_cross_entropy"),
        },
        missing={
            "flash_attn": _fill_functions,
            "flash_attn.flash_attn_interface": _fill_interface,
            "flash_attn.flash_attn_triton": names_of("flash_attn.triton_attention"),
            "flash_attn.bert_padding": _fill_padding,
            "flash_attn.layers": empty,
            "flash_attn.layers.rotary": names_of("flash_attn.rotary"),
            "flash_attn.losses": empty,
            "flash_attn.losses.cross_entropy": names_of("flash_attn.cross_entropy"),
            "flash_attn.modules": empty,
            "flash_attn.modules.mha": names_of("flash_attn.functions"),
            "flash_attn.ops": empty,
            "flash_attn.ops.activations": names_of("flash_attn.activations"),
            "flash_attn.ops.layer_norm": names_of("flash_attn.norms"),
            "flash_attn.ops.rms_norm": names_of("flash_attn.norms"),
            "flash_attn.ops.triton": empty,
            "flash_attn.ops.triton.cross_entropy": names_of("flash_attn.cross_entropy"),
            "flash_attn.ops.triton.layer_norm": names_of("flash_attn.norms"),
            "flash_attn.ops.triton.rotary": names_of("flash_attn.rotary"),
            "flash_attn.utils": empty,
            "flash_attn.utils.distributed": names_of("flash_attn.distributed"),
        },
    )


def _lazily(name: str) -> Fill:
    def fill(module: ModuleType) -> None:
        from sandtable.vgpu.packages.flash_attn import extensions

        getattr(extensions, name)(module)

    return fill


def _fill_functions(module: ModuleType) -> None:
    """Fill the package that is not installed; nobody else will make its operators."""
    from sandtable.vgpu.packages.flash_attn import operators

    names_of("flash_attn.functions")(module)
    operators.define()


def _fill_interface(module: ModuleType) -> None:
    names_of("flash_attn.functions", "flash_attn.operators")(module)
    module.flash_attn_gpu = importlib.import_module("flash_attn_2_cuda")  # type: ignore[attr-defined]


def _add_workspaces(module: object) -> None:
    """Have the installed package's functions copy and allocate what its code around the kernels would."""
    from sandtable.vgpu.packages.flash_attn import operators

    for name in operators.__all__:
        if hasattr(module, name):
            setattr(module, name, getattr(operators, name))


def _fill_padding(module: ModuleType) -> None:
    """Fill `bert_padding`; code also imports from there what it has of einops, which flash_attn requires."""
    names_of("flash_attn.padding")(module)
    with suppress(ImportError):
        einops: Any = importlib.import_module("einops")
        vars(module).update(rearrange=einops.rearrange, repeat=einops.repeat)
