"""DeepSpeed: kernels that it compiles when they are first needed (its op builders).

`OpBuilder.load` would start a compiler for CUDA, which a machine without a GPU hardly has, and leave a lock file
behind. Here it returns a namespace with the functions of the compiled module. Those on the card become operators of
torch:

    deepspeed::multi_tensor_adam, deepspeed::multi_tensor_lion   one update of many tensors, in a few kernels
    deepspeed::lamb                                              one tensor: moments, two norms, update

Those on the host are in `deepspeed_host.py` and `deepspeed_processes.py`, quantizers in `deepspeed_quantizer.py`, those
that drop tokens in `deepspeed_tokens.py`, attention in `deepspeed_evoformer.py`. A kernel without a function raises
with its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from sandtable.vgpu.packages import deepspeed_processes, deepspeed_shards
from sandtable.vgpu.packages.deepspeed_evoformer import EVOFORMER
from sandtable.vgpu.packages.deepspeed_host import HOST_KERNELS
from sandtable.vgpu.packages.deepspeed_quantizer import FLOAT_QUANTIZER, QUANTIZER
from sandtable.vgpu.packages.deepspeed_tokens import TOKEN_DROPPING
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher, within

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["package"]

_SCHEMAS = (
    "multi_tensor_adam(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs) -> ()",
    "multi_tensor_lion(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] exp_avgs) -> ()",
    "lamb(Tensor(a!) param, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor grad) -> Tensor",
)


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="deepspeed",
        adaptations={
            "deepspeed.ops.op_builder.builder": _adapt_builder,
            "deepspeed.runtime.engine": lambda module: _follow_phases(module.DeepSpeedEngine, watcher),
            "deepspeed.runtime.comm.coalesced_collectives": deepspeed_shards.adapt_reducing,
            "deepspeed.runtime.zero.partition_parameters": deepspeed_shards.adapt_gathering,
            "deepspeed.runtime.superoffload.superoffload_utils": deepspeed_processes.adapt_superoffload,
            "deepspeed.runtime.zenflow.zenflow_utils": deepspeed_processes.adapt_zenflow,
            "deepspeed.runtime.zero.stage_1_and_2": lambda module: _follow_reductions(module, watcher),
        },
    )


def _follow_phases(engine: Any, watcher: Watcher) -> None:
    """Report what the engine does after the backward pass, and around the optimizer.

    ZenFlow and SuperOffload update the parameters without calling an optimizer of torch, the former in part after
    `_take_model_step`.
    """
    original = engine._take_model_step

    @functools.wraps(original)
    def take_model_step(self: Any, *args: Any, **options: Any) -> Any:
        result = original(self, *args, **options)
        watcher.on_update()
        return result

    engine._take_model_step = within(watcher.around_optimizer, take_model_step)
    engine.step = within(watcher.around_optimizer, engine.step)
    if hasattr(engine, "_backward_epilogue"):
        engine._backward_epilogue = within(watcher.after_backward, engine._backward_epilogue)


def _follow_reductions(module: ModuleType, watcher: Watcher) -> None:
    """Report the buckets of ZeRO 1 and 2: a rank copies the slices of a bucket that are its own."""
    import torch

    optimizer = module.DeepSpeedZeroOptimizer
    original = optimizer.average_tensor

    @functools.wraps(original)
    def average_tensor(self: Any, tensor: Tensor, data_type: torch.dtype) -> Any:
        if hasattr(self, "ipg_buckets"):  # older releases keep them elsewhere
            parameters = [self.bit16_groups[group][place] for group, place, _ in self.ipg_buckets[data_type].params]
            watcher.on_reduction(parameters, torch._C._current_graph_task_id() != -1)
        return original(self, tensor, data_type)

    optimizer.average_tensor = average_tensor


def _adapt_builder(module: ModuleType) -> None:
    """Have op builders load our functions."""
    import torch

    library: Any = torch.library.Library("deepspeed", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in (*_SCHEMAS, *deepspeed_shards.SCHEMAS):
        library.define(schema)
    deepspeed_shards.define_kernels(library)
    library.impl("lamb", lambda param, *_: param.new_empty(1, dtype=torch.float32), "Meta")
    for name in ("multi_tensor_adam", "multi_tensor_lion"):
        library.impl(name, lambda *_: None, "Meta")
    module.OpBuilder._sandtable_library = library  # operators live as long as their library

    @functools.wraps(module.OpBuilder.load)
    def load(builder: Any, verbose: bool = False) -> Any:
        if builder.name in _MODULES:
            return SimpleNamespace(**_MODULES[builder.name])
        functions = _KERNELS.get(builder.name)
        if functions is None:
            raise RuntimeError(
                f"DeepSpeed's kernel '{builder.name}' must have a replacement to run on a virtual GPU, but there is "
                "none; leave out the option that uses it"
            )
        return SimpleNamespace(**{name: _without_gradients(function) for name, function in functions.items()})

    module.OpBuilder.load = load


def _without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as autograd sees a kernel that it does not know: not at all."""
    import torch

    return torch.no_grad()(function)


def _multi_tensor_adam(chunk_size: int, overflow: Tensor, lists: Sequence[list[Tensor]], *settings: float) -> None:
    import torch

    torch.ops.deepspeed.multi_tensor_adam(*lists)


def _multi_tensor_lion(chunk_size: int, overflow: Tensor, lists: Sequence[list[Tensor]], *settings: float) -> None:
    import torch

    torch.ops.deepspeed.multi_tensor_lion(*lists)


def _lamb(param: Tensor, copy: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, *settings: float) -> Tensor:
    import torch

    coefficient: Tensor = torch.ops.deepspeed.lamb(param, exp_avg, exp_avg_sq, grad)
    if copy.numel():
        copy.copy_(param)
    return coefficient


_KERNELS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "fused_adam": {"multi_tensor_adam": _multi_tensor_adam},
    "fused_lamb": {"lamb": _lamb},
    "fused_lion": {"multi_tensor_lion": _multi_tensor_lion},
}
"""By the name of an op builder, the functions of the module that it would build."""

_MODULES: Mapping[str, Mapping[str, Any]] = {
    **HOST_KERNELS,
    "evoformer_attn": EVOFORMER,
    "fp_quantizer": FLOAT_QUANTIZER,
    "quantizer": QUANTIZER,
    "random_ltd": TOKEN_DROPPING,
}
"""The same, where the functions record their kernels themselves."""
