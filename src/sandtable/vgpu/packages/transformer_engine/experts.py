"""Mixtures of experts: rows are padded to whole blocks, and tokens are moved to their experts and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.transformer_engine.kernels import launch

__all__ = [
    "fused_moe_aux_loss_bwd",
    "fused_moe_aux_loss_fwd",
    "fused_moe_aux_loss_fwd_graph_safe",
    "fused_multi_row_padding",
    "fused_multi_row_unpadding",
    "fused_score_for_moe_aux_loss_bwd",
    "fused_score_for_moe_aux_loss_fwd",
    "fused_topk_with_score_function_bwd",
    "fused_topk_with_score_function_fwd",
]


def fused_multi_row_padding(
    input: Tensor, output: Tensor, input_rows: Sequence[int], padded_rows: Sequence[int]
) -> None:
    launch("fused_multi_row_padding", [input], [output], "copy")


def fused_multi_row_unpadding(
    input: Tensor, output: Tensor, input_rows: Sequence[int], unpadded_rows: Sequence[int]
) -> None:
    launch("fused_multi_row_unpadding", [input], [output], "copy")


def fused_topk_with_score_function_fwd(
    logits: Tensor, topk: int, *settings: Any, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities, the map from tokens to experts, and the scores that the backward pass needs.

    The map is made by torch's own operators, so that its counts add up like those of any other routing.
    """
    scores = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    launch("fused_topk_with_score_function_fwd", [logits], [scores], "normalisation")
    chosen = scores.topk(topk, dim=-1).indices
    routing_map = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, chosen, True)
    return torch.empty_like(logits), routing_map, scores


def fused_topk_with_score_function_bwd(
    routing_map: Tensor, intermediate_output: Tensor, grad_probs: Tensor, grad_logits: Tensor, *settings: Any
) -> None:
    inputs = [routing_map, intermediate_output, grad_probs]
    launch("fused_topk_with_score_function_bwd", inputs, [grad_logits], "normalisation")


def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor, topk: int, *settings: Any, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _, routing_map, scores = fused_topk_with_score_function_fwd(logits, topk)
    return scores, routing_map, scores


def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, *settings: Any, **options: Any
) -> None:
    launch("fused_score_for_moe_aux_loss_bwd", [intermediate_output, grad_scores], [grad_logits], "normalisation")


def fused_moe_aux_loss_fwd(
    probs: Tensor, tokens_per_expert: Tensor, *settings: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    loss = torch.empty((), dtype=probs.dtype, device=probs.device)
    coefficient = torch.empty((), dtype=torch.float32, device=probs.device)
    launch("fused_moe_aux_loss_fwd", [probs, tokens_per_expert], [loss, coefficient], "reduction")
    return loss, coefficient


fused_moe_aux_loss_fwd_graph_safe = fused_moe_aux_loss_fwd


def fused_moe_aux_loss_bwd(
    Const_buf: Tensor, tokens_per_expert: Tensor, num_rows: int, num_cols: int, grad_aux_loss: Tensor
) -> Tensor:
    gradient = torch.empty((num_rows, num_cols), dtype=grad_aux_loss.dtype, device=grad_aux_loss.device)
    launch("fused_moe_aux_loss_bwd", [Const_buf, tokens_per_expert, grad_aux_loss], [gradient], "elementwise")
    return gradient
