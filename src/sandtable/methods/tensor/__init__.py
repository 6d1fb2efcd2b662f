"""TENSOR PARALLELISM: every layer split over the ranks of a group, after Megatron-LM.

    parallel = TensorParallel(model)                     # or plan={"mlp.up": "column", "mlp.down": "row", ...}
    optimizer = torch.optim.AdamW(model.parameters())    # afterwards: the parameters are new
    for tokens, targets in loader:                       # all ranks of the group see the same batch
        parallel.cross_entropy(model(tokens), targets).backward()
        optimizer.step()

Its parts also stand alone: the split layers, the cross-entropy of split logits, the ready plans (`GPT2`, `LLAMA`, ...),
and the operators between replicated and split work (`operators.copy`, `operators.reduce`, ...).
"""

from sandtable.methods.tensor import operators
from sandtable.methods.tensor.attention import ParallelMultiheadAttention
from sandtable.methods.tensor.convolution import ColumnParallelConv, RowParallelConv
from sandtable.methods.tensor.cross_entropy import cross_entropy
from sandtable.methods.tensor.embedding import VocabParallelEmbedding
from sandtable.methods.tensor.group import TensorGroup, TensorTraffic
from sandtable.methods.tensor.linear import ColumnParallelLinear, RowParallelLinear
from sandtable.methods.tensor.parallelise import TensorParallel
from sandtable.methods.tensor.plan import TensorPlan
from sandtable.methods.tensor.plans import (
    BASIC_BLOCK,
    BERT,
    BLOOM,
    BOTTLENECK,
    DECODER,
    ENCODER,
    GPT2,
    LLAMA,
    find_plan,
)
from sandtable.methods.tensor.styles import (
    ChannelSplit,
    ColumnSplit,
    HeadSplit,
    RowSplit,
    SplitStyle,
    SplitTarget,
    VocabularySplit,
)

__all__ = [
    "BASIC_BLOCK",
    "BERT",
    "BLOOM",
    "BOTTLENECK",
    "DECODER",
    "ENCODER",
    "GPT2",
    "LLAMA",
    "ChannelSplit",
    "ColumnParallelConv",
    "ColumnParallelLinear",
    "ColumnSplit",
    "HeadSplit",
    "ParallelMultiheadAttention",
    "RowParallelConv",
    "RowParallelLinear",
    "RowSplit",
    "SplitStyle",
    "SplitTarget",
    "TensorGroup",
    "TensorParallel",
    "TensorPlan",
    "TensorTraffic",
    "VocabParallelEmbedding",
    "VocabularySplit",
    "cross_entropy",
    "find_plan",
    "operators",
]
