"""TENSOR PARALLELISM: every layer split over the ranks of a group, after Megatron-LM.

`TensorParallel(model)` splits a model in place. The parts it is made of stand alone, too: layers, the loss of split
logits, and the gates between whole and split work (`sandtable.methods.tensor.operators`).
"""

from sandtable.methods.tensor.attention import ParallelMultiheadAttention
from sandtable.methods.tensor.convolution import ColumnParallelConv, RowParallelConv
from sandtable.methods.tensor.cross_entropy import cross_entropy
from sandtable.methods.tensor.embedding import VocabParallelEmbedding
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.linear import ColumnParallelLinear, RowParallelLinear
from sandtable.methods.tensor.parallelise import TensorParallel
from sandtable.methods.tensor.plan import Plan
from sandtable.methods.tensor.styles import Channels, Column, Heads, Row, Style, Vocabulary
from sandtable.methods.tensor.traffic import Traffic

__all__ = [
    "Channels",
    "Column",
    "ColumnParallelConv",
    "ColumnParallelLinear",
    "Heads",
    "ParallelMultiheadAttention",
    "Plan",
    "Row",
    "RowParallelConv",
    "RowParallelLinear",
    "Style",
    "TensorGroup",
    "TensorParallel",
    "Traffic",
    "VocabParallelEmbedding",
    "Vocabulary",
    "cross_entropy",
]
