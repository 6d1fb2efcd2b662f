"""Ready plans for modules known by their class name, so that nothing has to be imported.

GPT-2 fuses query, key and value in thirds, so each third is split. Bloom fuses them head by head, so a plain slice
holds complete heads; its position biases (alibi) cover all heads, of which a rank takes its own. Llama may have fewer
heads for keys and values than for queries: the ranks must divide both numbers.

Residual blocks of convolutions are known by torchvision's names: both convolutions of a basic block are split, and the
second and third of a bottleneck; its first, 1x1, stays whole on every rank. Other convolution nets are split pair by
pair (`channel_plan.py`).
"""

from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.channel_plan import pair_up
from sandtable.methods.tensor.convolution import is_convolution
from sandtable.methods.tensor.plan import TensorPlan
from sandtable.methods.tensor.styles import ColumnSplit, HeadSplit

__all__ = ["BASIC_BLOCK", "BERT", "BLOOM", "BOTTLENECK", "DECODER", "ENCODER", "GPT2", "LLAMA", "find_plan"]

GPT2 = TensorPlan(
    {
        "wte": "vocabulary",
        "lm_head": "vocabulary",
        "attn": "heads",
        "attn.c_attn": ColumnSplit(parts=3),
        "attn.c_proj": "row",
        "mlp.c_fc": "column",
        "mlp.c_proj": "row",
    },
    sequence=("h.*", "ln_f"),
    is_strict=False,
)
BERT = TensorPlan(
    {
        "embeddings.word_embeddings": "vocabulary",
        "predictions.decoder": "vocabulary",
        "attention.self": "heads",
        "attention.self.query": "column",
        "attention.self.key": "column",
        "attention.self.value": "column",
        "attention.output.dense": "row",
        "intermediate.dense": "column",
        "layer.*.output.dense": "row",
    },
    sequence=("encoder.layer.*",),
    is_strict=False,
)
BLOOM = TensorPlan(
    {
        "word_embeddings": "vocabulary",
        "lm_head": "vocabulary",
        "self_attention": HeadSplit(of_heads=("alibi",)),
        "self_attention.query_key_value": "column",
        "self_attention.dense": "row",
        "mlp.dense_h_to_4h": "column",
        "mlp.dense_4h_to_h": "row",
    },
    sequence=("h.*", "ln_f"),
    is_strict=False,
)
LLAMA = TensorPlan(
    {
        "embed_tokens": "vocabulary",
        "lm_head": "vocabulary",
        "self_attn": "heads",
        "self_attn.q_proj": "column",
        "self_attn.k_proj": "column",
        "self_attn.v_proj": "column",
        "self_attn.o_proj": "row",
        "mlp.gate_proj": "column",
        "mlp.up_proj": "column",
        "mlp.down_proj": "row",
    },
    sequence=("layers.*", "norm"),
    is_strict=False,
)
ENCODER = TensorPlan(
    {"self_attn": "heads", "linear1": "column", "linear2": "row"},
    sequence=("layers.*",),
    is_strict=False,
)
# Every layer of a decoder reads the encoder's output, so its tokens are not split.
DECODER = TensorPlan(
    {"self_attn": "heads", "multihead_attn": "heads", "linear1": "column", "linear2": "row"},
    is_strict=False,
)

BASIC_BLOCK = TensorPlan({"layer*.*.conv1": "column", "layer*.*.bn1": "channels", "layer*.*.conv2": "row"})
BOTTLENECK = TensorPlan({"layer*.*.conv2": "column", "layer*.*.bn2": "channels", "layer*.*.conv3": "row"})

_PLANS = {
    "TransformerDecoderLayer": DECODER,
    "TransformerEncoderLayer": ENCODER,
    "GPT2Attention": GPT2,
    "BertSelfAttention": BERT,
    "BloomAttention": BLOOM,
    "LlamaAttention": LLAMA,
    "BasicBlock": BASIC_BLOCK,
    "Bottleneck": BOTTLENECK,
}


def find_plan(model: nn.Module) -> TensorPlan:
    """Return the first plan for which the model has a module, or pairs of layers for a sequential convolution net."""
    classes = {type(module).__name__ for module in model.modules()}
    for name, plan in _PLANS.items():
        if name in classes:
            return plan
    if any(map(is_convolution, model.modules())) and (pairs := pair_up(model)) is not None:
        return pairs
    raise MethodError(
        f"to be split without a plan, a model must have known layers ({', '.join(_PLANS)}), or pairs of convolutions "
        f"in an nn.Sequential, but {type(model).__name__} has none; name its layers: "
        'plan=TensorPlan({"mlp.up": "column", "mlp.down": "row"})'
    )
