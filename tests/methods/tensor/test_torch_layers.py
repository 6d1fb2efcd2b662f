"""torch's own transformer layers, split by the ready plan."""

from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.tensor.models import Outcome, gather
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.tensor import ParallelMultiheadAttention, TensorParallel
from sandtable.methods.tensor.dropout import Randomness
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.region import Region


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _make_encoder(batch_first: bool) -> nn.Module:
    torch.manual_seed(13)
    layer = nn.TransformerEncoderLayer(8, 4, 16, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


def _encode(model: nn.Module, *, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Return the outputs in training and in evaluation, with gradients of the first."""
    inputs = _random(3, 6, 8, seed=1)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    inputs = inputs if batch_first else inputs.transpose(0, 1)
    settings: dict[str, Any] = {"mask": mask, "src_key_padding_mask": padding.double().masked_fill(padding, -torch.inf)}
    outputs = model(inputs, **settings)
    outputs.square().sum().backward()
    model.eval()
    with torch.no_grad():
        evaluated = model(inputs, **settings)
    return outputs.detach(), evaluated


def _split_encoder(batch_first: bool, sequence_parallel: bool) -> Outcome:
    model = _make_encoder(batch_first)
    parallel = TensorParallel(model, sequence_parallel=sequence_parallel, sequence_dim=1 if batch_first else 0)
    outputs, evaluated = _encode(model, batch_first=batch_first)
    return gather(model, parallel, [], outputs=outputs, evaluated=evaluated)


@pytest.mark.parametrize(("batch_first", "sequence_parallel"), [(True, False), (True, True), (False, True)])
def test_an_encoder_computes_as_the_unsplit_one(batch_first, sequence_parallel):
    model = _make_encoder(batch_first)
    outputs, evaluated = _encode(model, batch_first=batch_first)
    alone = gather(model, None, [])
    for outcome in run(2, _split_encoder, batch_first, sequence_parallel):
        outcome.check_equal(alone)
        torch.testing.assert_close(outcome.notes["outputs"], outputs)
        torch.testing.assert_close(outcome.notes["evaluated"], evaluated)


def _make_transformer(dropout: float) -> nn.Module:
    torch.manual_seed(14)
    return nn.Transformer(8, 4, 1, 2, 16, dropout=dropout, batch_first=True).double()


def _translate(model: nn.Module) -> Tensor:
    outputs: Tensor = model(_random(3, 6, 8, seed=1), _random(3, 5, 8, seed=2))
    outputs.square().sum().backward()
    return outputs.detach()


def _split_transformer(dropout: float) -> Outcome:
    model = _make_transformer(dropout)
    parallel = TensorParallel(model)
    outputs = _translate(model)
    return gather(model, parallel, [], outputs=outputs, drawn=torch.rand(3))


def test_a_decoder_reads_the_encoder_as_the_unsplit_one():
    model = _make_transformer(0.0)
    outputs = _translate(model)
    alone = gather(model, None, [])
    for outcome in run(2, _split_transformer, 0.0):
        outcome.check_equal(alone)
        torch.testing.assert_close(outcome.notes["outputs"], outputs)


def test_random_numbers_agree_after_layers_that_enter_several_tensors():
    first, second = run(2, _split_transformer, 0.5)
    assert torch.equal(first.notes["drawn"], second.notes["drawn"])
    torch.testing.assert_close(first.notes["outputs"], second.notes["outputs"])


def _attend() -> dict[str, Any]:
    torch.manual_seed(15)
    whole = nn.MultiheadAttention(8, 4, batch_first=True)
    group = TensorGroup()
    region = Region(group, Randomness(group))
    split = ParallelMultiheadAttention(whole, region)
    inputs = torch.randn(2, 5, 8)
    mask = torch.rand(2 * 4, 5, 5) < 0.3
    mask[:, :, 0] = False
    expected, all_weights = whole(inputs, inputs, inputs, attn_mask=mask, average_attn_weights=False)
    found, weights = split(inputs, inputs, inputs, attn_mask=mask, average_attn_weights=False)
    found_without, none = split(inputs, inputs, inputs, attn_mask=mask, need_weights=False)
    told = []
    for settings in ({"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 4}, {"vdim": 4}):
        with pytest.raises(MethodError) as error:
            ParallelMultiheadAttention(nn.MultiheadAttention(8, 4, **settings), region, name="cross")
        told.append(str(error.value))
    for number, hint in ((0, False), (slice(None), True)):
        with pytest.raises(MethodError) as error:
            split(inputs[number], inputs[number], inputs[number], is_causal=hint)
        told.append(str(error.value))
    assert none is None
    outputs = [each.detach() for each in (found, found_without, expected)]
    return {
        "outputs": outputs,
        "weights": (weights.detach(), all_weights.chunk(2, 1)[group.rank].detach()),
        "told": told,
    }


def test_attention_takes_masks_of_heads_gives_its_weights_and_refuses_what_it_cannot():
    for found in run(2, _attend):
        with_weights, without, expected = found["outputs"]
        torch.testing.assert_close(with_weights, expected)
        torch.testing.assert_close(without, expected)
        torch.testing.assert_close(*found["weights"])
        for told, setting in zip(found["told"], ("add_bias_kv", "add_zero_attn", "kdim", "vdim"), strict=False):
            assert f"cross sets {setting}; leave it out of the plan" in told
        assert "must have 3 dims, but got 2" in found["told"][-2]
        assert "is_causal is a hint about attn_mask" in found["told"][-1]
