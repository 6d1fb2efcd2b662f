"""Compare sums of predicted operator costs with published times of layers and steps on one GPU.

    python bench/compute.py            # every case
    python bench/compute.py --quick    # two cases
    python bench/compute.py --detail   # with the time by family

Each case lists the operators that the published program runs, written down by hand in bench/compute_cases. This judges
the cost model alone, without capture, clock, network and host: these programs keep the device busy. Cases marked with *
were used to fit the catalogue's efficiencies. The last line is a JSON object, by case:

device        name in the catalogue
published_ms  published time
model_ms      sum of the predicted operator costs
error_pct     error of the prediction
fitted        whether the case was used to fit the efficiencies
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compute_cases.cnn import resnet50, vgg16
from compute_cases.gpt import Gpt, adam_ops, attention_ops, backward_ops, forward_ops, head_ops

from sandtable.cluster import load_device
from sandtable.engine.compute import CostModel
from sandtable.trace.signature import Signature

BUS_BYTES_PER_S = 235e9
"""Measured bus bandwidth (nccl-tests) of an all-reduce between the eight A100 of a node over NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A published time and the operators behind it; `extra_ms` is time that no operator accounts for."""

    id: str
    device: str
    published_ms: float
    ops: Callable[[], Iterator[Signature]]
    extra_ms: float = 0.0
    fitted: bool = False


def main() -> None:
    """Print one line per case, then everything as JSON."""
    args = parse_arguments()
    figures: dict[str, dict[str, float | str | bool]] = {}
    for case in CASES[:2] if args.quick else CASES:
        by_family = cost_by_family(case)
        model_ms = sum(by_family.values()) + case.extra_ms
        error = 100 * (model_ms / case.published_ms - 1)
        mark = "*" if case.fitted else " "
        print(f"{case.id:34}{mark} {case.device:16} {case.published_ms:9.2f} ms {model_ms:9.2f} ms {error:+6.1f} %")
        if args.detail:
            print(
                "   " + ", ".join(f"{name} {ms:.2f}" for name, ms in by_family.most_common()), f"+ {case.extra_ms:.2f}"
            )
        figures[case.id] = {
            "device": case.device,
            "published_ms": round(case.published_ms, 3),
            "model_ms": round(model_ms, 3),
            "error_pct": round(error, 1),
            "fitted": case.fitted,
        }
    print(json.dumps(figures))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first two cases only")
    parser.add_argument("--detail", action="store_true", help="print the time by family of operators")
    return parser.parse_args()


def cost_by_family(case: Case) -> Counter[str]:
    """Return the device's milliseconds by family."""
    model = CostModel(load_device(case.device))
    total: Counter[str] = Counter()
    for signature, count in Counter(case.ops()).items():
        cost = model.cost(signature)
        total[cost.family] += count * cost.work_ns / 1e6
    return total


def all_reduce_ms(num_bytes: int, size: int = 8) -> float:
    return 2 * (size - 1) / size * num_bytes / BUS_BYTES_PER_S * 1e3


KORTHIKANTI_22B = Gpt(hidden=6144, heads=64, layers=1, seq=2048, batch=4, tp=8)
"""One layer. The two all-reduces of (seq, batch, hidden) in its forward pass are exposed; those of the backward pass
overlap with the gradients of the weights (in Megatron-LM since early 2022)."""
SUMS_MS = 2 * all_reduce_ms(2 * KORTHIKANTI_22B.tokens * KORTHIKANTI_22B.hidden)

MEGATRON_1B = {"hidden": 1920, "heads": 15, "layers": 24, "seq": 1024, "vocab": 51200}
MPT = {"vocab": 50368, "dtype": "bfloat16", "style": "fused"}
MPT_1B = Gpt(hidden=2048, heads=16, layers=24, seq=2048, batch=8, loss_dtype="bfloat16", **MPT)
MPT_1B_LONG = replace(MPT_1B, seq=16384, batch=1)
MPT_7B = Gpt(hidden=4096, heads=32, layers=32, seq=4096, batch=16, **MPT)
MPT_7B_LONG = replace(MPT_7B, seq=32768, batch=2)
"""On A100 everything was bfloat16; on H100 autocast computed the loss in float32."""


def megatron_step(batch: int) -> Callable[[], Iterator[Signature]]:
    """Return the operators of a step that runs every layer's forward pass again before its backward pass."""
    model = Gpt(**MEGATRON_1B, batch=batch)

    def ops() -> Iterator[Signature]:
        for _ in range(2 * model.layers):
            yield from forward_ops(model)
        for _ in range(model.layers):
            yield from backward_ops(model)
        yield from head_ops(model)
        yield from adam_ops(model.num_params)

    return ops


def mpt_step(model: Gpt, *, micro_batches: int, shards: int, recompute: bool) -> Callable[[], Iterator[Signature]]:
    """Return the operators of a rank's step under FSDP with hidden communication; the optimizer updates a shard."""

    def ops() -> Iterator[Signature]:
        for _ in range(micro_batches):
            for _ in range((2 if recompute else 1) * model.layers):
                yield from forward_ops(model)
            for _ in range(model.layers):
                yield from backward_ops(model)
            yield from head_ops(model)
        yield from adam_ops(model.num_params // shards)

    return ops


CASES = (
    Case(
        id="kor_22B_layer_forward",
        device="a100-sxm4-80gb",
        published_ms=7.7,
        ops=lambda: forward_ops(KORTHIKANTI_22B),
        extra_ms=SUMS_MS,
        fitted=True,
    ),
    Case(
        id="megatron_readme_1B_a100",
        device="a100-sxm4-40gb",
        published_ms=1076,
        ops=megatron_step(16),
        fitted=True,
    ),
    Case(
        id="kor_22B_layer_backward",
        device="a100-sxm4-80gb",
        published_ms=11.9,
        ops=lambda: backward_ops(KORTHIKANTI_22B),
        fitted=True,
    ),
    Case(
        id="kor_22B_layer_attention_again",
        device="a100-sxm4-80gb",
        published_ms=13.2 - 11.9,
        ops=lambda: attention_ops(KORTHIKANTI_22B),
        fitted=True,
    ),
    Case(
        id="megatron_readme_1B_v100",
        device="v100-sxm3-32gb",
        published_ms=1121,
        ops=megatron_step(8),
        fitted=True,
    ),
    Case(
        id="mpt_1b_s2048_8_a100_40gb",
        device="a100-sxm4-40gb",
        published_ms=6801.4,
        ops=mpt_step(MPT_1B, micro_batches=8, shards=8, recompute=False),
        fitted=True,
    ),
    Case(
        id="mpt_1b_s16384_8_a100_40gb",
        device="a100-sxm4-40gb",
        published_ms=13491.2,
        ops=mpt_step(MPT_1B_LONG, micro_batches=8, shards=8, recompute=False),
        fitted=True,
    ),
    Case(
        id="mpt_7b_s32768_8_h100_80gb",
        device="h100-sxm5-80gb",
        published_ms=39494.4,
        ops=mpt_step(MPT_7B_LONG, micro_batches=2, shards=8, recompute=True),
        fitted=True,
    ),
    Case(
        id="mpt_7b_s4096_8_h100_80gb",
        device="h100-sxm5-80gb",
        published_ms=15220.4,
        ops=mpt_step(MPT_7B, micro_batches=2, shards=8, recompute=True),
        fitted=True,
    ),
    *(
        Case(id=row, device=device, published_ms=milliseconds, ops=ops, fitted=True)
        for row, device, milliseconds, ops in (
            ("tf_resnet50_b64_p100", "p100-sxm2-16gb", 64e3 / 219, lambda: resnet50(64)),
            ("tf_resnet50_b32_p100", "p100-sxm2-16gb", 32e3 / 195, lambda: resnet50(32)),
            ("tf_vgg16_b64_p100", "p100-sxm2-16gb", 64e3 / 154, lambda: vgg16(64)),
            ("goyal_bw_b32_p100", "p100-sxm2-16gb", 120.0, lambda: resnet50(32, passes=("backward",))),
            ("tf_resnet50_b64_k80", "k80", 64e3 / 51.9, lambda: resnet50(64)),
            ("tf_vgg16_b32_k80", "k80", 32e3 / 35.4, lambda: vgg16(32)),
            ("pipedream_resnet50_b128", "v100-sxm2-16gb", 182.49 + 260.93, lambda: resnet50(128)),
            ("pipedream_vgg16_b128", "v100-sxm2-16gb", 233.9 + 438.63, lambda: vgg16(128)),
        )
    ),
)

if __name__ == "__main__":
    main()
