"""Models of transformers, split by the ready plans, match the unsplit ones: loss and every gradient."""

from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.tensor.models import Outcome, gather, tokens_of
from torch import nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.tensor import GPT2, TensorParallel

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

_COMMON = {"vocab_size": 32, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2}
_NO_DROPOUT = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {**_COMMON, "n_positions": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        {**_COMMON, "intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "bloom": ("BloomConfig", "BloomForCausalLM", {**_COMMON, **_NO_DROPOUT}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**_COMMON, "intermediate_size": 32, "num_key_value_heads": 2}),
}


def _make(kind: str, **changes: Any) -> nn.Module:
    config, model, settings = _MODELS[kind]
    torch.manual_seed(12)
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**{**settings, **changes}))
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):  # they are made as zeros, of which one would not see that they are added twice
            nn.init.normal_(parameter, std=0.1)
    return made.double().train()


def _alone(kind: str) -> Outcome:
    model, (tokens, targets) = _make(kind), tokens_of(0)
    loss = F.cross_entropy(model(input_ids=tokens, use_cache=False).logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return gather(model, None, [loss.item()])


def _split(kind: str, sequence_parallel: bool) -> Outcome:
    model, (tokens, targets) = _make(kind), tokens_of(0)
    parallel = TensorParallel(model, sequence_parallel=sequence_parallel)
    parallel.traffic.reset()
    logits = model(input_ids=tokens, use_cache=False).logits
    forward = dict(parallel.traffic.calls)
    loss = parallel.cross_entropy(logits, targets)
    loss.backward()
    outcome = gather(model, parallel, [loss.item()], forward=forward, shape=list(logits.shape))
    whole = _make(kind).state_dict()
    again = parallel.full_state_dict()
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    return outcome


def _split_both_ways(kind: str) -> tuple[Outcome, Outcome]:
    return _split(kind, False), _split(kind, True)


@pytest.mark.parametrize("kind", list(_MODELS))
def test_a_split_model_computes_as_the_unsplit_one(kind):
    alone = _alone(kind)
    for split, shared_out in run(2, _split_both_ways, kind):
        split.check_equal(alone, tolerance=1e-6)  # norms and softmax of some models are in float32
        shared_out.check_equal(alone, tolerance=1e-6)
        assert split.notes["shape"] == shared_out.notes["shape"] == [4, 8, 16]
        # Two for each of two layers, and the embedding's.
        assert split.notes["forward"] == {"all-reduce": 5}
        assert shared_out.notes["forward"] == {"all-reduce": 1, "all-gather": 4 + 1, "reduce-scatter": 4}


def _leave_vocabulary_whole() -> Outcome:
    model, (tokens, targets) = _make("gpt2", vocab_size=31), tokens_of(0, vocabulary=31)
    parallel = TensorParallel(model, plan=GPT2.without("wte", "lm_head"))
    loss = F.cross_entropy(model(input_ids=tokens).logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return gather(model, parallel, [loss.item()])


def test_an_uneven_vocabulary_may_be_left_whole():
    model, (tokens, targets) = _make("gpt2", vocab_size=31), tokens_of(0, vocabulary=31)
    loss = F.cross_entropy(model(input_ids=tokens).logits.flatten(0, 1), targets.flatten())
    loss.backward()
    alone = gather(model, None, [loss.item()])
    for outcome in run(4, _leave_vocabulary_whole):
        outcome.check_equal(alone, tolerance=1e-6)


def _recompute(kind: str, sequence_parallel: bool) -> dict[bool, Outcome]:
    """Train with dropout, with and without recomputing each block in backward, hooks included."""
    dropout = {"gpt2": {"resid_pdrop": 0.3, "attn_pdrop": 0.3}, "bert": {"hidden_dropout_prob": 0.3}}[kind]
    found = {}
    for is_recomputed in (False, True):
        model, (tokens, targets) = _make(kind, **dropout), tokens_of(0)
        if is_recomputed:
            model.gradient_checkpointing_enable()  # type: ignore[operator]
        torch.manual_seed(16)
        parallel = TensorParallel(model, sequence_parallel=sequence_parallel)
        loss = parallel.cross_entropy(model(input_ids=tokens, use_cache=False).logits, targets)
        loss.backward()
        found[is_recomputed] = gather(model, parallel, [loss.item()], drawn=torch.rand(3))
    return found


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_recomputation_of_blocks_draws_the_same_masks(kind, sequence_parallel):
    first, second = run(2, _recompute, kind, sequence_parallel)
    for found in (first, second):
        found[True].check_equal(found[False], tolerance=1e-6)
    for is_recomputed in (False, True):  # and outside, the ranks go on in step
        assert torch.equal(first[is_recomputed].notes["drawn"], second[is_recomputed].notes["drawn"])


def _refusals() -> list[str]:
    told = []
    for kind, changes in (
        ("llama", {}),
        ("gpt2", {"num_attention_heads": 2}),
        ("gpt2", {"vocab_size": 30}),
    ):
        with pytest.raises(MethodError) as error:
            TensorParallel(_make(kind, **changes))
        told.append(str(error.value))
    with pytest.raises(MethodError) as error:
        TensorParallel(_make("gpt2", add_cross_attention=True), sequence_parallel=True)
    return [*told, str(error.value)]


def test_too_few_heads_and_uneven_vocabularies_are_refused_with_the_remedy():
    few, heads, vocabulary, cross = run(4, _refusals)[0]
    assert "(4) must divide num_key_value_heads of model.layers.0.self_attn, but got 2; try a group of 1 or 2" in few
    assert "(4) must divide num_heads of transformer.h.0.attn, but got 2; try a group of 1 or 2 ranks" in heads
    assert "(4) must divide the vocabulary of transformer.wte, but got 30; pad it to 32" in vocabulary
    assert "also read an encoder's (config.add_cross_attention); use sequence_parallel=False" in cross
