"""A stage of Megatron-LM's GPT: some of its layers, the embedding if it is the first, the head if it is the last.

Activations are [seq, batch, hidden]. Attention is not fused: scores and probabilities are whole matrices in memory, as
in all of Megatron-LM before flash attention. Word embeddings serve as the head too; if first and last stage are on
different ranks, each has a copy.
"""

import math

import torch
from fused_kernels import bias_dropout_add, bias_gelu, causal_softmax
from gpt_text import GPTConfig
from megatron_layers import (
    Linear,
    Options,
    Recompute,
    SplitSequence,
    VocabParallelCrossEntropy,
    VocabParallelEmbedding,
    leave_pair,
    parallel_linear,
)
from torch import Tensor, nn

__all__ = ["GPTStage"]


class GPTStage(nn.Module):
    """Layers `layers` of the model."""

    def __init__(self, config: GPTConfig, options: Options, *, layers: range, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.config, self.options = config, options
        self.is_first, self.is_last = is_first, is_last
        if is_first or is_last:
            self.wte = VocabParallelEmbedding(config.vocab_size, config.hidden_size, options)
        if is_first:
            self.wpe = nn.Embedding(config.seq_len, config.hidden_size)
        self.blocks = nn.ModuleDict({str(layer): Layer(config, options) for layer in layers})
        if is_last:
            self.ln_f = nn.LayerNorm(config.hidden_size)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Tokens or activations to activations or the losses [seq, batch] of the targets."""
        if self.is_first:
            x = self.embed(x)
        for block in self.blocks.values():
            x = Recompute.apply(block, self.options.random, x) if self.options.recompute == "full" else block(x)
        if not self.is_last:
            return x
        logits = parallel_linear(self.ln_f(x), self.wte.weight, None, self.options, enter=True)
        return VocabParallelCrossEntropy.apply(logits.float(), targets.t().contiguous(), self.options.tp)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token and position vectors, with dropout."""
        positions = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        x = (self.wte(tokens) + self.wpe(positions)).transpose(0, 1).contiguous()
        if self.options.sequence_parallel:
            x = SplitSequence.apply(x, self.options.tp)
            with self.options.random.own():
                return nn.functional.dropout(x, self.options.dropout)
        return nn.functional.dropout(x, self.options.dropout)

    def sequence_parameters(self) -> list[nn.Parameter]:
        """Those whose gradient a rank sees only its share of the sequence for, under sequence parallelism."""
        names = (".ln1.", ".ln2.", "ln_f.", ".proj.bias", ".fc2.bias")
        return [param for name, param in self.named_parameters() if any(part in f".{name}" for part in names)]


class Layer(nn.Module):
    """A transformer layer with a share of its heads and of its MLP's width."""

    def __init__(self, config: GPTConfig, options: Options) -> None:
        super().__init__()
        hidden, share = config.hidden_size, config.hidden_size // options.tp.size
        self.options = options
        self.head_size = config.head_size
        self.ln1 = nn.LayerNorm(hidden)
        self.qkv = Linear(hidden, 3 * share, options, enter=True, bias_width=3 * share)
        self.proj = Linear(share, hidden, options, enter=False, bias_width=hidden)
        self.ln2 = nn.LayerNorm(hidden)
        self.fc1 = Linear(hidden, 4 * share, options, enter=True, bias_width=4 * share)
        self.fc2 = Linear(4 * share, hidden, options, enter=False, bias_width=hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[seq, batch, hidden] to the same."""
        mixed = self.qkv(self.ln1(x), add_bias=True)
        q, k, v = mixed.view(*mixed.shape[:2], -1, 3 * self.head_size).split(self.head_size, dim=-1)
        if self.options.recompute == "selective":
            context = Recompute.apply(self.attend, self.options.random, q, k, v)
        else:
            context = self.attend(q, k, v)
        x = self.add(leave_pair(self.proj(context), self.options), self.proj.bias, x)
        wide = bias_gelu(self.fc1(self.ln2(x)), self.fc1.bias)
        return self.add(leave_pair(self.fc2(wide), self.options), self.fc2.bias, x)

    def add(self, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        """residual + dropout(x + bias)."""
        if self.options.sequence_parallel:
            with self.options.random.own():
                return bias_dropout_add(x, bias, residual, self.options.dropout)
        return bias_dropout_add(x, bias, residual, self.options.dropout)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Core attention over [seq, batch, heads, head size]: scores, softmax, dropout, weighted sum of values."""
        seq, batch, heads, size = q.shape
        q, k, v = (x.reshape(seq, batch * heads, size).transpose(0, 1) for x in (q, k, v))
        scores = torch.baddbmm(
            q.new_empty(batch * heads, seq, seq), q, k.transpose(1, 2), beta=0.0, alpha=1.0 / math.sqrt(size)
        )
        probs = causal_softmax(scores.view(batch, heads, seq, seq), 1.0)
        with self.options.random.own():
            probs = nn.functional.dropout(probs, self.options.dropout)
        context = torch.bmm(probs.view(batch * heads, seq, seq), v)
        return context.view(batch, heads, seq, size).permute(2, 0, 1, 3).reshape(seq, batch, heads * size)
