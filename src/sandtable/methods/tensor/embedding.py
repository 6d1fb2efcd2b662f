"""VocabParallelEmbedding: a dictionary in volumes, one on each rank.

Every rank looks up every word. The rank that has its row returns it, the others return zeros, and the sum over the
ranks is the embedding.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.layout import ShardLayout
from sandtable.methods.tensor.operators import reduce

__all__ = ["VocabParallelEmbedding", "check_words"]


class VocabParallelEmbedding(nn.Module):
    """This rank's rows of an `nn.Embedding`; the output is replicated."""

    def __init__(self, embedding: nn.Module, group: TensorGroup, *, name: str = "embedding") -> None:
        super().__init__()
        _check(embedding, name)
        assert isinstance(embedding, nn.Embedding)
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.layouts = {"weight": ShardLayout(dim=0)}
        num_ranks = group.size
        group.check_divides(
            self.num_embeddings,
            f"the vocabulary of {name}",
            f"pad it to {-(-self.num_embeddings // num_ranks) * num_ranks}",
        )
        share = self.layouts["weight"].take(embedding.weight.detach(), group, name)
        self.weight = nn.Parameter(share, requires_grad=embedding.weight.requires_grad)
        self.first = group.rank * len(share)
        self.sparse = embedding.sparse
        self.padding_idx = embedding.padding_idx
        self._group = group

    def forward(self, words: Tensor) -> Tensor:
        """Map indices [...] to vectors [..., embedding_dim]."""
        check_words(words, self.num_embeddings)
        row = words - self.first
        is_here = (row >= 0) & (row < len(self.weight))
        vectors = F.embedding(row * is_here, self.weight, self._padding_row, sparse=self.sparse)
        return reduce(vectors * is_here.unsqueeze(-1), self._group)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, rows={len(self.weight)} from {self.first}"

    @property
    def _padding_row(self) -> int | None:
        """The row that does not learn, if it is on this rank."""
        is_here = self.padding_idx is not None and 0 <= self.padding_idx - self.first < len(self.weight)
        return self.padding_idx - self.first if is_here and self.padding_idx is not None else None


def check_words(words: Tensor, vocabulary: int) -> None:
    """Raise `MethodError` for indices that no rank has; only on the CPU, since a device would have to be waited for."""
    if words.device.type != "cpu" or words.numel() == 0:
        return
    low, high = (int(word) for word in words.aminmax())
    if low < 0 or high >= vocabulary:
        raise MethodError(
            f"indices must be from 0 to {vocabulary - 1}, but got {low if low < 0 else high}; "
            "check the tokenizer against the model's vocabulary"
        )


def _check(embedding: nn.Module, name: str) -> None:
    if not isinstance(embedding, nn.Embedding):
        raise MethodError(
            f"a vocabulary must be an nn.Embedding or an nn.Linear, but {name} is a {type(embedding).__name__}; "
            "leave it out of the plan"
        )
    for setting, value in (("max_norm", embedding.max_norm), ("scale_grad_by_freq", embedding.scale_grad_by_freq)):
        if value:
            raise MethodError(
                f"a split embedding must use its weights as stored, but {name} has {setting}={value}; "
                "leave it out of the plan"
            )
