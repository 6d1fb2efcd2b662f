"""apex: NVIDIA's fused optimizers, norms and softmax, and the kernels that Megatron-LM takes from it.

If apex is installed, its Python code runs, and only its compiled modules are replaced. If not, `apex.normalization`,
`apex.optimizers`, `apex.multi_tensor_apply` and a few more are those of the files here.
"""

import importlib
from collections.abc import Callable
from types import ModuleType

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    empty, norms = names_of(), names_of("apex.norms")
    layers, optimizers = names_of("apex.layers"), names_of("apex.optimizers")
    softmax = _lazily("fill_softmax")
    return Package(
        name="apex",
        version="0.1",
        compiled={
            "amp_C": names_of("apex.multi_tensor"),
            "fused_layer_norm_cuda": names_of("apex.compiled_norms"),
            "fast_layer_norm": names_of("apex.compiled_norms"),
            "fused_weight_gradient_mlp_cuda": names_of("apex.megatron"),
            "fused_rotary_positional_embedding": _lazily("fill_rope"),
            "generic_scaled_masked_softmax_cuda": softmax,
            "scaled_masked_softmax_cuda": softmax,
            "scaled_softmax_cuda": softmax,
            "scaled_upper_triang_masked_softmax_cuda": softmax,
        },
        missing={
            "apex": _import_submodules,
            "apex.amp": layers,
            "apex.contrib": empty,
            "apex.contrib.clip_grad": layers,
            "apex.contrib.layer_norm": norms,
            "apex.contrib.layer_norm.layer_norm": norms,
            "apex.contrib.xentropy": layers,
            "apex.fused_dense": layers,
            "apex.multi_tensor_apply": optimizers,
            "apex.normalization": norms,
            "apex.normalization.fused_layer_norm": norms,
            "apex.optimizers": optimizers,
            "apex.optimizers.fused_adam": optimizers,
            "apex.parallel": layers,
        },
    )


def _import_submodules(module: ModuleType) -> None:
    """Have `import apex` bring these, as its own code does: libraries look for `apex.optimizers.FusedAdam` then."""
    for name in ("normalization", "optimizers", "parallel"):
        importlib.import_module(f"{module.__name__}.{name}")


def _lazily(name: str) -> Callable[[ModuleType], None]:
    def fill(module: ModuleType) -> None:
        from sandtable.vgpu.packages.apex import megatron

        getattr(megatron, name)(module)

    return fill
