"""Steps of a Llama of Hugging Face, eagerly or compiled, as stas00/ml-engineering measured them on one B200.

    python bench/compiled_cases/huggingface_llama.py 1b forward+backward default

The measured program is training/performance/benchmarks/torch-compile-bench.py there: bf16, SDPA, one sequence, and
gradient checkpointing wherever there is a backward pass. It downloads weights; this one makes them up.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import sandtable

MODELS = {
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
SEQUENCE_LENGTHS = {"1b": 512, "8b": 8192}
NUM_STEPS = 4


def main() -> None:
    """Make steps of a workload: forward, forward+backward or forward+backward+optim."""
    size, workload, mode = sys.argv[1:]
    torch.set_float32_matmul_precision("high")
    tokens = torch.randint(0, 30000, (1, SEQUENCE_LENGTHS[size]), device="cuda")
    config = LlamaConfig(**MODELS[size], vocab_size=128256, rope_theta=500000.0, max_position_embeddings=131072)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    is_training = workload != "forward"
    model.train(is_training)
    if is_training:
        model.config.use_cache = False
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if workload.endswith("optim") else None
    run = model if mode == "eager" else torch.compile(model, mode=mode)
    for _ in range(NUM_STEPS):
        if is_training:
            run.zero_grad(set_to_none=True)
            run(input_ids=tokens, labels=tokens).loss.backward()
            if optimizer is not None:
                optimizer.step()
        else:
            with torch.no_grad():
                run(input_ids=tokens)
        sandtable.step()


main()
