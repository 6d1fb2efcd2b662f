"""`apply_liger_kernel_to_llama` and its kin, where liger-kernel is not installed: layers of transformers are replaced.

Models made of RMS norms and gated feed-forward layers are all patched alike: by the names of their classes, in the
module that defines them for models to come, and in a model that exists.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

from sandtable.vgpu.packages.liger_kernel import layers, losses

__all__ = ["MODEL_TYPES", "apply_to_instance", "apply_to_type", "fill_patches"]

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2")
"""Model types of transformers that are known to be made this way."""

_PREFIX = "apply_liger_kernel_to_"


def fill_patches(module: ModuleType) -> None:
    """Put one function per model type into a module; another type is an error with the remedy."""
    functions = {model_type: _patch_function(model_type) for model_type in MODEL_TYPES}
    for model_type, function in functions.items():
        setattr(module, f"{_PREFIX}{model_type}", function)
    module.__dict__["MODEL_TYPE_TO_APPLY_LIGER_FN"] = functions
    module.__dict__["_apply_liger_kernel"] = apply_to_type
    module.__dict__["_apply_liger_kernel_to_instance"] = apply_to_instance
    module.__dict__["AutoLigerKernelForCausalLM"] = _PatchedAutoModel
    module.__dict__["__getattr__"] = _reject


def apply_to_type(model_type: str, **options: Any) -> None:
    """Patch models of a type that are made from now on."""
    _patch_function(_known(model_type))(**options)


def apply_to_instance(model: Any, **options: Any) -> None:
    """Patch a model that exists."""
    _patch_function(_known(model.config.model_type))(model=model, **options)


class _PatchedAutoModel:
    """`AutoModelForCausalLM`, with the type of the model patched first."""

    @staticmethod
    def from_pretrained(path: str, *args: Any, **options: Any) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        apply_to_type(AutoConfig.from_pretrained(path).model_type)
        return AutoModelForCausalLM.from_pretrained(path, *args, **options)

    @staticmethod
    def from_config(config: Any, **options: Any) -> Any:
        from transformers import AutoModelForCausalLM

        apply_to_type(config.model_type)
        return AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]


def _patch_function(model_type: str) -> Callable[..., None]:
    def patch(
        rope: bool = True,
        cross_entropy: bool = False,
        fused_linear_cross_entropy: bool = True,
        rms_norm: bool = True,
        swiglu: bool = True,
        model: Any = None,
        **_: Any,
    ) -> None:
        modeling: Any = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
        if rope:
            modeling.apply_rotary_pos_emb = layers.liger_rotary_pos_emb
        for name, value in list(vars(modeling).items()):
            if rms_norm and name.endswith("RMSNorm"):
                setattr(modeling, name, layers.LigerRMSNorm)
            elif swiglu and name.endswith("MLP"):
                setattr(modeling, name, layers.LigerSwiGLUMLP)
            elif fused_linear_cross_entropy and name.endswith("ForCausalLM") and model is None:
                value.forward = _forward
        if cross_entropy:
            importlib.import_module("torch.nn.functional").cross_entropy = losses.liger_cross_entropy  # type: ignore[attr-defined]
        if model is not None:
            _patch_model(model, rms_norm=rms_norm, swiglu=swiglu, fused_linear_cross_entropy=fused_linear_cross_entropy)

    patch.__name__ = patch.__qualname__ = f"{_PREFIX}{model_type}"
    return patch


def _patch_model(model: Any, *, rms_norm: bool, swiglu: bool, fused_linear_cross_entropy: bool) -> None:
    for module in model.modules():
        kind = type(module).__name__
        if rms_norm and kind.endswith("RMSNorm"):
            module.forward = MethodType(layers.normalise, module)
        elif swiglu and kind.endswith("MLP"):
            module.forward = MethodType(layers.swiglu_forward, module)
    if fused_linear_cross_entropy and hasattr(model, "lm_head"):
        model.forward = MethodType(_forward, model)


def _forward(
    self: Any, input_ids: Any = None, labels: Any = None, num_items_in_batch: Any = None, logits_to_keep: Any = 0,
    shift_labels: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Run a causal model; in training, output layer and loss are one, and there are no logits."""
    from torch.nn.functional import pad
    from transformers.modeling_outputs import CausalLMOutputWithPast

    outputs = self.model(input_ids=input_ids, **options)
    hidden, loss, logits = outputs[0], None, None
    if self.training and (labels is not None or shift_labels is not None):
        targets = pad(labels, (0, 1), value=-100)[..., 1:] if shift_labels is None else shift_labels
        rows = hidden.reshape(-1, hidden.shape[-1])
        reduction = "mean" if num_items_in_batch is None else "sum"
        weight = self.lm_head.weight
        loss = losses.liger_fused_linear_cross_entropy(rows, weight, targets.reshape(-1), reduction=reduction)
        loss = loss if num_items_in_batch is None else loss / num_items_in_batch
    else:
        logits = self.lm_head(hidden[:, slice(-logits_to_keep, None) if logits_to_keep else slice(None)])
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
    past = getattr(outputs, "past_key_values", None)
    return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)


def _known(model_type: str) -> str:
    if model_type not in MODEL_TYPES:
        _reject(f"{_PREFIX}{model_type}")
    return model_type


def _reject(name: str) -> Any:
    if not name.startswith(_PREFIX):
        raise AttributeError(f"the replacement of liger-kernel has no {name}; pip install --no-deps liger-kernel")
    raise ImportError(
        f"liger-kernel is not installed here, and its replacement knows the models {', '.join(MODEL_TYPES)}, but the "
        f"script asks for {name.removeprefix(_PREFIX)}; pip install --no-deps liger-kernel"
    )
