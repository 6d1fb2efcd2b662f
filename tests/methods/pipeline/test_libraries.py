"""Models of Hugging Face, if installed, are traced and cut unmodified."""

import pytest
import torch

from sandtable.methods.pipeline import cut, trace

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=16)
    ),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)),
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(hidden_size=16, n_layer=2, n_head=2, vocab_size=64)
    ),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_stages_of_a_library_model_are_the_model(name):
    torch.manual_seed(0)
    model, tokens = MODELS[name]().eval(), torch.randint(3, 60, (3, 8))
    model.config.use_cache = False
    traced = trace(model, tokens)
    assert traced.whole == {}
    assert len(traced) >= 20
    stages = cut(model, tokens, [len(traced) // 3, 2 * len(traced) // 3])
    for batch in (tokens, tokens[:1, :5]):
        values = (batch,)
        for stage in stages[:-1]:
            values = stage(*values)
        found, expected = stages[-1](*values), model(batch)
        assert type(found) is type(expected)
        torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)
    assert set().union(*(stage.state_dict() for stage in stages)) == set(model.state_dict())
