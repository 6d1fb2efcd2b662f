"""Options of DeepSpeed that its own Python implements, on kernels of ours."""

# mypy: disable-error-code="import-untyped"

from pathlib import Path

import pytest
import torch
from tests.vgpu.virtual import rehearse

import sandtable
from sandtable import LaunchOptions

pytest.importorskip("deepspeed")

WIDTH, BATCH, LAYERS = 1024, 8, 3
CHECKPOINTS = f"""
import torch, deepspeed

config = {{
    "train_micro_batch_size_per_gpu": {BATCH},
    "bf16": {{"enabled": True}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3}}}},
    "zero_optimization": {{"stage": 1}},
    "activation_checkpointing": {{"partition_activations": True, "cpu_checkpointing": True}},
}}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear({WIDTH}, {WIDTH})
        self.layers = torch.nn.ModuleList(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS}))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = deepspeed.checkpointing.checkpoint(layer, x)
        return x


model = Model()
engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
deepspeed.checkpointing.configure(None, deepspeed_config=config)
for _ in range(2):
    x = torch.rand({BATCH}, {WIDTH}, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(x).float().mean())
    engine.step()
"""
QUANTIZED = f"""
import torch, deepspeed

config = {{
    "train_micro_batch_size_per_gpu": {BATCH},
    "bf16": {{"enabled": True}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3}}}},
    "zero_optimization": {{"stage": 3, "zero_quantized_gradients": True, "zero_hpz_partition_size": 8}},
}}
with deepspeed.zero.Init(config_dict_or_path=config):
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(2)))
engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
for _ in range(2):
    x = torch.rand({BATCH}, 4096, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(x).float().mean())
    engine.step()
"""


def _rehearse(source: str, tmp_path: Path, *, nodes: int, ranks_per_node: int) -> sandtable.Rehearsal:
    script = tmp_path / "train.py"
    script.write_text(source)
    options = LaunchOptions(ranks_per_node=ranks_per_node)
    return sandtable.rehearse(script, cluster="dgx-a100", nodes=nodes, steps=2, options=options)


def test_partitioned_activations_wait_in_host_memory(tmp_path: Path) -> None:
    run = _rehearse(CHECKPOINTS, tmp_path, nodes=1, ranks_per_node=2)
    assert run.error is None
    copies = [op.signature for op in run.trace.rank(0).operators() if op.signature.op == "copy::device_to_host"]
    activations = [copy for copy in copies if copy.inputs[0].size_bytes == 2 * BATCH * WIDTH]
    assert len(activations) == 2 * LAYERS  # once per checkpoint and step; one rank of tensor parallelism keeps it whole


def test_quantized_gradients_cross_two_nodes_in_few_bits(tmp_path: Path) -> None:
    """Gradients are exchanged inside the node in 4 bits, and then between nodes: a byte holds two numbers."""
    run = _rehearse(QUANTIZED, tmp_path, nodes=2, ranks_per_node=8)
    assert run.error is None
    calls = [call for call in run.trace.rank(0).collectives() if call.op == "all_to_all" and call.dtype == "int8"]
    sizes = {(len(call.group.ranks), call.bytes_in) for call in calls}
    assert sizes == {(8, 4096 * 4096 // 2), (2, 4096 * 4096 // 2 // 8)}  # all of a gradient, then this rank's eighth


def _drop_tokens() -> None:
    from deepspeed.ops.random_ltd.dropping_utils import GatherTokens, ScatterTokens, gpt_sample_tokens

    positions, _ = gpt_sample_tokens(64, 256, 4, layers=1, device="cuda")
    x = torch.empty(4, 256, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    every, kept = GatherTokens.apply(x, positions[0], True)
    assert kept.shape == (4, 64, 512)
    ScatterTokens.apply(every, kept * 2, positions[0], True).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_dropped_tokens_move_once_each_way() -> None:
    operators = [op.signature for op in rehearse(_drop_tokens).trace.rank(0).operators()]
    names = [signature.op for signature in operators]
    assert names.count("deepspeed::token_gather") == names.count("deepspeed::token_scatter") == 2
    gather = next(signature for signature in operators if signature.op == "deepspeed::token_gather")
    assert gather.work is not None
    assert gather.work.bytes_read == 4 * 64 * (512 * 2 + 4)
