"""Megatron-LM's parallel layers: linears split by columns or rows, the embedding and the loss split by vocabulary.

Shoeybi et al. 2019 (arXiv:1909.08053); sequence parallelism: Korthikanti et al. 2022 (arXiv:2205.05198).
`Options` holds what changed from version to version of Megatron-LM and is visible in the time of a step.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from parallel_layout import Axis, RandomStates
from torch import Tensor, nn
from torch.autograd import Function

__all__ = ["Linear", "Options", "Recompute", "VocabParallelCrossEntropy", "VocabParallelEmbedding", "leave_pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How layers are run.

    sequence_parallel   between pairs of linears each tp rank keeps its share of the sequence
    async_tensor        backward exchanges the input's gradient while it works out the weight's
    fused_wgrad         a weight's gradient is added to its fp32 buffer by the matrix product itself
    """

    tp: Axis
    random: RandomStates
    dropout: float
    recompute: str = "none"
    sequence_parallel: bool = False
    async_tensor: bool = False
    fused_wgrad: bool = False


class Linear(nn.Module):
    """This rank's share of a linear. `enter`: it is the first of a pair, and its input comes from outside the pair."""

    def __init__(self, num_in: int, num_out: int, options: Options, *, enter: bool, bias_width: int) -> None:
        super().__init__()
        self.options = options
        self.enter = enter
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(bias_width))

    def forward(self, x: Tensor, *, add_bias: bool = False) -> Tensor:
        """x [seq, batch, in] by the weight; the bias is left to the kernel that follows unless `add_bias`."""
        return parallel_linear(x, self.weight, self.bias if add_bias else None, self.options, enter=self.enter)


def parallel_linear(x: Tensor, weight: Tensor, bias: Tensor | None, options: Options, *, enter: bool) -> Tensor:
    """x by weight, with the exchanges of a pair's first linear if `enter`."""
    return _ParallelLinear.apply(x, weight, bias, options, enter and options.tp.size > 1)


class _ParallelLinear(Function):
    """A linear whose backward overlaps its exchange with the weight's gradient, if the options say so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: Options, enter: bool) -> Tensor:
        ctx.options, ctx.enter, ctx.has_bias = options, enter, bias is not None
        ctx.save_for_backward(x, weight)
        whole = all_gather(x, options.tp) if enter and options.sequence_parallel else x
        if bias is None:
            return torch.matmul(whole, weight.t())
        if options.fused_wgrad:  # came with a linear of its own, which adds the bias after the product
            return torch.matmul(whole, weight.t()) + bias
        return torch.addmm(bias, whole.flatten(0, 1), weight.t()).view(*whole.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        options: Options = ctx.options
        gathers = ctx.enter and options.sequence_parallel
        gathering = None
        if gathers:  # the whole input was not kept: fetch it again, while the input's gradient is worked out
            shard, x = x, x.new_empty(x.size(0) * options.tp.size, *x.shape[1:])
            gathering = dist.all_gather_single(x, shard.contiguous(), group=options.tp.group, async_op=True)
        grad_x = grad.matmul(weight)
        if gathering is not None:
            gathering.wait()
        exchange = None
        if gathers:
            whole, grad_x = grad_x, grad_x.new_empty(grad_x.size(0) // options.tp.size, *grad_x.shape[1:])
            exchange = dist.reduce_scatter_single(grad_x, whole, group=options.tp.group, async_op=True)
        elif ctx.enter and options.async_tensor:
            exchange = dist.all_reduce(grad_x, group=options.tp.group, async_op=True)
        flat = grad.reshape(-1, grad.size(-1))
        grad_weight = weight_gradient(weight, flat, x.reshape(-1, x.size(-1)), fused=options.fused_wgrad)
        grad_bias = flat.sum(dim=0) if ctx.has_bias else None
        if exchange is not None:
            exchange.wait()
        elif ctx.enter:
            dist.all_reduce(grad_x, group=options.tp.group)
        return grad_x, grad_weight, grad_bias, None, None


def weight_gradient(weight: Tensor, grad: Tensor, x: Tensor, *, fused: bool) -> Tensor | None:
    """grad.T by x; if `fused`, added to the weight's fp32 buffer in the same kernel, and nothing is returned."""
    if not fused:
        return grad.t().matmul(x)
    total = weight.main_grad
    if total.dtype == grad.dtype:
        total.addmm_(grad.t(), x)
    elif grad.is_cuda:  # half precision in, single precision out
        torch.ops.aten.addmm.dtype_out(total, grad.t(), x, total.dtype, out=total)
    else:
        total.addmm_(grad.t().to(total.dtype), x.to(total.dtype))
    return None


def leave_pair(x: Tensor, options: Options) -> Tensor:
    """From partial sums to the sum, or this rank's share of its sequence."""
    if options.tp.size == 1:
        return x
    return (_ScatterSum if options.sequence_parallel else _Sum).apply(x, options.tp)


class _Sum(Function):
    """All-reduce, in place; backward passes the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Axis) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=tp.group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _ScatterSum(Function):
    """Reduce-scatter along the sequence; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Axis) -> Tensor:
        ctx.tp = tp
        share = x.new_empty(x.size(0) // tp.size, *x.shape[1:])
        dist.reduce_scatter_single(share, x.contiguous(), group=tp.group)
        return share

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_gather(grad, ctx.tp), None


class SplitSequence(Function):
    """This rank's share of a sequence that every tp rank holds; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Axis) -> Tensor:
        """Cut."""
        ctx.tp = tp
        return x.chunk(tp.size)[tp.rank].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """All-gather."""
        return all_gather(grad, ctx.tp), None


def all_gather(x: Tensor, tp: Axis) -> Tensor:
    """The ranks' shares, one after the other along dim 0."""
    whole = x.new_empty(x.size(0) * tp.size, *x.shape[1:])
    dist.all_gather_single(whole, x.contiguous(), group=tp.group)
    return whole


class VocabParallelEmbedding(nn.Module):
    """A share of the vocabulary's vectors. Ranks look up what they hold and add up."""

    def __init__(self, vocab: int, hidden: int, options: Options) -> None:
        super().__init__()
        self.tp = options.tp
        self.weight = nn.Parameter(torch.empty(vocab // self.tp.size, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors [batch, seq, hidden] of tokens [batch, seq]."""
        if self.tp.size == 1:
            return nn.functional.embedding(tokens, self.weight)
        first = self.tp.rank * self.weight.size(0)
        is_elsewhere = (tokens < first) | (tokens >= first + self.weight.size(0))
        local = (tokens - first).masked_fill_(is_elsewhere, 0)
        vectors = nn.functional.embedding(local, self.weight)
        return _Sum.apply(vectors.masked_fill(is_elsewhere.unsqueeze(-1), 0.0), self.tp)


class VocabParallelCrossEntropy(Function):
    """Loss of each token, from fp32 logits of a share of the vocabulary.

    Three exchanges of one number a token: the largest logit, the target's logit, the sum of exponentials. The logits
    are overwritten: what is kept for backward is their softmax.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, tp: Axis) -> Tensor:
        """Losses [seq, batch] of logits [seq, batch, vocab / tp] and targets [seq, batch]."""
        top = logits.amax(dim=-1)
        _reduce(top, tp, dist.ReduceOp.MAX)
        logits.sub_(top.unsqueeze(-1))
        first, num_rows = tp.rank * logits.size(-1), logits.size(-1)
        is_elsewhere = (targets < first) | (targets >= first + num_rows)
        index = (targets - first).masked_fill_(is_elsewhere, 0).unsqueeze(-1)
        at_target = logits.gather(-1, index).squeeze(-1).masked_fill_(is_elsewhere, 0.0)
        _reduce(at_target, tp, dist.ReduceOp.SUM)
        probs = logits.exp_()
        total = probs.sum(dim=-1)
        _reduce(total, tp, dist.ReduceOp.SUM)
        loss = total.log() - at_target
        ctx.save_for_backward(probs.div_(total.unsqueeze(-1)), index, is_elsewhere)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """softmax - one at the target."""
        probs, index, is_elsewhere = ctx.saved_tensors
        probs.scatter_add_(-1, index, is_elsewhere.logical_not().to(probs.dtype).neg_().unsqueeze(-1))
        return probs.mul_(grad.unsqueeze(-1)), None, None


def _reduce(x: Tensor, tp: Axis, how: dist.ReduceOp) -> None:
    if tp.size > 1:
        dist.all_reduce(x, how, group=tp.group)


class Recompute(Function):
    """Runs a function and keeps only its inputs; backward runs it again, drawing the same random numbers."""

    @staticmethod
    def forward(ctx: Any, function: Any, random: RandomStates, *inputs: Tensor) -> Tensor:
        """Without a graph."""
        ctx.function, ctx.random, ctx.states = function, random, random.get()
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Again with a graph, then through it."""
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        now = ctx.random.get()
        ctx.random.set(ctx.states)
        with torch.enable_grad():
            out = ctx.function(*inputs)
        ctx.random.set(now)
        torch.autograd.backward(out, grad)
        return None, None, *(x.grad for x in inputs)
