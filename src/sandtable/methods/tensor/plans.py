"""Ready plans, for attention modules that are known by the name of their class: nothing is imported for it.

Query, key and value of GPT-2 are fused in thirds, so each third is split; Bloom's are fused head by head, so a plain
slice holds whole heads, and its position biases (alibi) are those of all heads, of which a rank takes its own. Llama
may have fewer heads for keys and values than for queries: both numbers must be dealt evenly.

Residual blocks of convolutions are known by torchvision's names: of a basic block both convolutions are split, of a
bottleneck the second and the third; the first, of 1x1, is whole on every rank. Other convolution nets are split pair by
pair (`channel_plan.py`).
"""

from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.channel_plan import pair_up
from sandtable.methods.tensor.convolution import is_convolution
from sandtable.methods.tensor.plan import Plan
from sandtable.methods.tensor.styles import Column, Heads

__all__ = ["BASIC_BLOCK", "BERT", "BLOOM", "BOTTLENECK", "DECODER", "ENCODER", "GPT2", "LLAMA", "find_plan"]

GPT2 = Plan(
    {
        "wte": "vocabulary",
        "lm_head": "vocabulary",
        "attn": "heads",
        "attn.c_attn": Column(parts=3),
        "attn.c_proj": "row",
        "mlp.c_fc": "column",
        "mlp.c_proj": "row",
    },
    sequence=("h.*", "ln_f"),
    is_strict=False,
)
BERT = Plan(
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
BLOOM = Plan(
    {
        "word_embeddings": "vocabulary",
        "lm_head": "vocabulary",
        "self_attention": Heads(of_heads=("alibi",)),
        "self_attention.query_key_value": "column",
        "self_attention.dense": "row",
        "mlp.dense_h_to_4h": "column",
        "mlp.dense_4h_to_h": "row",
    },
    sequence=("h.*", "ln_f"),
    is_strict=False,
)
LLAMA = Plan(
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
ENCODER = Plan(
    {"self_attn": "heads", "linear1": "column", "linear2": "row"},
    sequence=("layers.*",),
    is_strict=False,
)
# A decoder reads the encoder's output in every layer, so tokens are not shared out.
DECODER = Plan(
    {"self_attn": "heads", "multihead_attn": "heads", "linear1": "column", "linear2": "row"},
    is_strict=False,
)

BASIC_BLOCK = Plan({"layer*.*.conv1": "column", "layer*.*.bn1": "channels", "layer*.*.conv2": "row"})
BOTTLENECK = Plan({"layer*.*.conv2": "column", "layer*.*.bn2": "channels", "layer*.*.conv3": "row"})

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


def find_plan(model: nn.Module) -> Plan:
    """The first plan for which the model has a module; pairs of layers, if it is a convolution net in rows."""
    classes = {type(module).__name__ for module in model.modules()}
    for name, plan in _PLANS.items():
        if name in classes:
            return plan
    if any(map(is_convolution, model.modules())) and (pairs := pair_up(model)) is not None:
        return pairs
    raise MethodError(
        f"a model must have layers that are known ({', '.join(_PLANS)}), or pairs of convolutions in an nn.Sequential, "
        f"to be split without a plan, but {type(model).__name__} has none; name its layers: "
        'plan=Plan({"mlp.up": "column", "mlp.down": "row"})'
    )
