"""The shape of a GPT, and text for it to learn from."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GPTConfig", "synthetic_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """The shape of the model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    seq_len: int

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


def synthetic_batch(config: GPTConfig, *, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Samples `first` .. `first + count` of an endless text, as (tokens, targets): each counts upward by 1, 2 or 3.

    Sample n is the same whichever rank asks for it. Only an eighth of the vocabulary appears, so that there is
    something to learn from the first step on.
    """
    sample = torch.arange(first, first + count).unsqueeze(1)
    text = (7 * sample + (1 + sample % 3) * torch.arange(config.seq_len + 1)) % (config.vocab_size // 8)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
