"""Tensor parallelism by hand: a GPT's layers, each split over the ranks of one group, as Megatron-LM does it.

Shoeybi et al. 2019 (arXiv:1909.08053): the first linear of a pair is split by columns, the second by rows, so that a
pair needs one exchange each way. Korthikanti et al. 2022 (arXiv:2205.05198), sequence parallelism: between the pairs
every rank keeps its own share of the sequence, and the all-reduce becomes an all-gather before the pair and a
reduce-scatter after it.

                       tensor parallel                    + sequence parallel
    enter a pair       f: identity   | backward all-reduce     all-gather     | backward reduce-scatter
    leave a pair       g: all-reduce | backward identity       reduce-scatter | backward all-gather

Activations are [tokens, hidden], the first position of every sample first: a share of the tokens is a share of the
sequence, all-gather and reduce-scatter need no transposition, and a linear is a plain matrix product. gpt_tp.py does
the same with DTensor; this costs less Python per operator.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt_model import VOCAB_BLOCK, GPTConfig
from job import require_divides
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

# torch 2.12 has only the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """The ranks that share every layer."""

    group: dist.ProcessGroup
    rank: int
    size: int
    sequence_parallel: bool = False

    def check(self, config: GPTConfig) -> None:
        """Raise unless the model can be split over this group."""
        require_divides(self.size, config.num_heads, names=("tp", "num_heads"))
        require_divides(self.size, config.vocab_size // VOCAB_BLOCK, names=("tp", "vocab_size / 128"))
        if self.sequence_parallel:
            require_divides(self.size, config.seq_len, names=("tp", "seq_len"))

    def enter(self, x: Tensor) -> Tensor:
        """Enter a pair of linears (f)."""
        if self.size == 1:
            return x
        return GatherSequence.apply(x, self) if self.sequence_parallel else ReduceGradient.apply(x, self)

    def leave(self, x: Tensor) -> Tensor:
        """Leave a pair of linears: reduce the partial sums (g)."""
        if self.size == 1:
            return x
        return ScatterSequence.apply(x, self) if self.sequence_parallel else ReduceOutput.apply(x, self)


class ReduceGradient(Function):
    """f: the input is whole on every rank; its gradient is the sum of the ranks' parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorGroup) -> Tensor:
        """Identity."""
        ctx.tp = tp
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """All-reduce, in place: the gradient comes straight from a matrix product and nobody else holds it."""
        dist.all_reduce(grad, group=ctx.tp.group)
        return grad, None


class ReduceOutput(Function):
    """g: the output is the sum of the ranks' parts; its gradient is whole on every rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorGroup) -> Tensor:
        """All-reduce, in place."""
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=tp.group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Identity."""
        return grad, None


class GatherSequence(Function):
    """f of sequence parallelism: from a share of the sequence to all of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorGroup) -> Tensor:
        """All-gather."""
        ctx.tp = tp
        return all_gather(x, tp)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Reduce-scatter."""
        return reduce_scatter(grad, ctx.tp), None


class ScatterSequence(Function):
    """g of sequence parallelism: from partial sums of all of the sequence to the sum of a share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorGroup) -> Tensor:
        """Reduce-scatter."""
        ctx.tp = tp
        return reduce_scatter(x, tp)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """All-gather."""
        return all_gather(grad, ctx.tp), None


def all_gather(x: Tensor, tp: TensorGroup) -> Tensor:
    """Concatenate the ranks' shares along dim 0."""
    whole = x.new_empty(x.size(0) * tp.size, *x.shape[1:])
    _all_gather(whole, x.contiguous(), group=tp.group)
    return whole


def reduce_scatter(x: Tensor, tp: TensorGroup) -> Tensor:
    """Return this rank's share, along dim 0, of the sum over the ranks."""
    share = x.new_empty(x.size(0) // tp.size, *x.shape[1:])
    _reduce_scatter(share, x.contiguous(), group=tp.group)
    return share


class ParallelGPT(nn.Module):
    """`gpt_model.GPT`, or a slice of its layers, with every layer split over `tp`. Same names, same initial values."""

    def __init__(self, config: GPTConfig, tp: TensorGroup, *, layers: range) -> None:
        super().__init__()
        self.is_first = layers.start == 0
        self.is_last = layers.stop == config.num_layers
        self.recompute = config.recompute
        self.tp = tp
        if self.is_first:
            self.wte = nn.Embedding(config.vocab_size // tp.size, config.hidden_size)
            self.wpe = nn.Embedding(config.seq_len, config.hidden_size)
        self.blocks = nn.ModuleDict({str(layer): ParallelBlock(config, tp) for layer in layers})
        if self.is_last:
            self.ln_f = nn.LayerNorm(config.hidden_size)
            self.head = nn.Linear(config.hidden_size, config.vocab_size // tp.size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [batch, seq] or activations [tokens, hidden] to activations or this rank's share of the logits."""
        if self.is_first:
            x = self.embed(x.t().flatten())
        for block in self.blocks.values():
            # Reentrant: it repeats the whole block, collectives too, and needs no Python hook per saved tensor.
            x = checkpoint(block, x, use_reentrant=True, preserve_rng_state=False) if self.recompute else block(x)
        if self.is_last:
            x = self.head(self.tp.enter(self.ln_f(x)))
        return x

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up the tokens whose rows this rank holds, leave zeros for the others, and sum over the ranks."""
        num_rows, hidden = self.wte.weight.shape
        local = tokens - self.tp.rank * num_rows
        is_here = (local >= 0) & (local < num_rows)
        x = self.tp.leave(self.wte(local.clamp(0, num_rows - 1)) * is_here.unsqueeze(-1))
        positions = self.wpe.weight
        if self.tp.sequence_parallel:
            positions = positions.chunk(self.tp.size)[self.tp.rank]
        return (x.view(positions.size(0), -1, hidden) + positions.unsqueeze(1)).view(-1, hidden)

    def replicated_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that every rank holds whole: LayerNorms, positions, biases added after the sum."""
        return [param for name, param in self.named_parameters() if re.search(r"ln|wpe|proj_bias|fc2_bias", name)]


class ParallelBlock(nn.Module):
    """A transformer layer with a share of its heads and of its MLP's width."""

    def __init__(self, config: GPTConfig, tp: TensorGroup) -> None:
        super().__init__()
        hidden, share = config.hidden_size, config.hidden_size // tp.size
        self.tp = tp
        self.heads_shape = (config.seq_len, -1, config.num_heads // tp.size, 3 * config.head_size)
        self.ln1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * share)
        self.proj = nn.Linear(share, hidden, bias=False)
        self.proj_bias = nn.Parameter(torch.empty(hidden))
        self.ln2 = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, 4 * share)
        self.fc2 = nn.Linear(4 * share, hidden, bias=False)
        self.fc2_bias = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Map [tokens, hidden] (or a share of the tokens) to the same. The second bias is added after the sum."""
        enter, leave = self.tp.enter, self.tp.leave
        x = x + (leave(self.proj(self.attend(self.qkv(enter(self.ln1(x)))))) + self.proj_bias)
        wide = F.gelu(self.fc1(enter(self.ln2(x))), approximate="tanh")
        return x + (leave(self.fc2(wide)) + self.fc2_bias)

    def attend(self, qkv: Tensor) -> Tensor:
        """Apply causal attention over this rank's heads: no rank needs another's."""
        parts = qkv.view(self.heads_shape).chunk(3, dim=-1)  # each [seq, batch, heads, head size]
        q, k, v = (part.permute(1, 2, 0, 3) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.permute(2, 0, 1, 3).reshape(qkv.size(0), -1)


class VocabParallelCrossEntropy(Function):
    """Mean cross entropy of logits split by vocabulary.

    No rank sees another's logits: per token, the ranks exchange the largest logit, then the sum of exponentials and the
    target's logit.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, tp: TensorGroup) -> Tensor:
        """Return the loss of logits [tokens, vocab / tp] and targets [batch, seq]."""
        num_rows = logits.size(-1)
        probs = logits.float()
        top = probs.amax(dim=-1, keepdim=True)
        if tp.size > 1:
            dist.all_reduce(top, dist.ReduceOp.MAX, group=tp.group)
        probs = probs - top
        local = targets.t().reshape(-1, 1) - tp.rank * num_rows
        is_here = (local >= 0) & (local < num_rows)
        index = local.clamp(0, num_rows - 1)
        target_logit = probs.gather(-1, index) * is_here
        probs.exp_()
        sums = torch.stack((probs.sum(dim=-1, keepdim=True), target_logit))
        if tp.size > 1:
            dist.all_reduce(sums, group=tp.group)
        ctx.save_for_backward(probs.div_(sums[0]), index, is_here)
        ctx.dtype = logits.dtype
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return (softmax - one at the target) / number of tokens."""
        probs, index, is_here = ctx.saved_tensors
        probs.scatter_add_(-1, index, is_here.to(probs.dtype).neg_())
        return (probs * (grad / index.numel())).to(ctx.dtype), None, None
