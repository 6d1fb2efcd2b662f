"""How fast each compressor and its inverse are, and whether they pay at 1 Gbit/s.

    python bench/compression.py
    python bench/compression.py --quick

A vector of four million float32 (as many as a small CNN has, or a bucket of 16 MB) is encoded and decoded by each
compressor as users get it, with error feedback, on one thread and on two, against torch's copy_ of the same vector.
The compressors take turns, so that what else the machine does is spread over all; figures are medians (`least_` the
fastest: what it takes when the machine does nothing else). Before the
first that counts each has run once, so that the residual is there and the C++ is compiled.

A message saves (dense bytes - its bytes) / 125 MB/s on the wire and costs one encode and one decode. It pays if that
is less. PowerSGD is no message: what is timed is its whole reduction of a 2048 x 2048 matrix with nobody else there,
which is its encode and decode. The last line is a JSON object:

elements, dense_bytes, bandwidth_bytes_per_s, load_average, repeats
memcpy_gb_s           by threads: bytes of the vector a second, in copy_
compressors           by name, and then by threads:
  message_bytes         what goes over the wire instead of dense_bytes
  encode_gb_s, decode_gb_s  bytes of the vector a second
  cost_ms, saved_ms     encode + decode, and the time saved on the wire
  pays                  cost < saved
  least_cost_ms         the fastest encode + the fastest decode
  cpu_cost_ms           processor time of both, on all threads: on one, the cost where the machine does nothing else
none_costs_more_than_it_saves   over all of them, on one thread and on two
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from sandtable.methods.compression import (
    QSGD,
    Compression,
    Half,
    MomentumCorrection,
    PowerSGD,
    RandomK,
    Sign,
    Threshold,
    TopK,
)
from sandtable.units import GBIT_BYTES

COMPRESSORS: dict[str, Compression] = {
    "Half('float16')": Half(),
    "Half('bfloat16')": Half("bfloat16"),
    "Sign()": Sign(),
    **{f"QSGD({bits})": QSGD(bits) for bits in range(2, 9)},
    "QSGD(8), no feedback": QSGD(8, error_feedback=False),
    "QSGD(4), no feedback": QSGD(4, error_feedback=False),
    "TopK(0.001)": TopK(0.001),
    "TopK(0.01)": TopK(0.01),
    "TopK(0.1)": TopK(0.1),
    "TopK(0.01), momentum": TopK(0.01, momentum=MomentumCorrection()),
    "TopK.sparse_loco()": TopK.sparse_loco(),
    "RandomK(0.01)": RandomK(0.01),
    "RandomK(0.1)": RandomK(0.1),
    "Threshold(3.0)": Threshold(3.0),
    "Threshold(share=0.05)": Threshold(share=0.05),
}
QUICK = ("Half('float16')", "Sign()", "QSGD(4)", "TopK(0.01)", "Threshold(share=0.05)")
POWER_SGD_SIDE = 2048


def main() -> None:
    """Print a line a compressor, then everything as JSON."""
    args = parse_arguments()
    names = QUICK if args.quick else tuple(COMPRESSORS)
    repeats = 3 if args.quick else args.repeats
    figures: dict[str, Any] = {name: {} for name in (*names, "PowerSGD(4)")}
    copies = {}
    for threads in args.threads:
        torch.set_num_threads(threads)
        cases = {name: codec_case(COMPRESSORS[name], args.elements) for name in names}
        cases["PowerSGD(4)"] = power_sgd_case(PowerSGD(4))
        copies[threads] = 4 * args.elements / measure_copy(args.elements, repeats) / 1e9
        print(f"{threads} thread(s): copy_ {copies[threads]:.1f} GB/s")
        for _ in range(repeats):
            for case in cases.values():
                case.run()
        for name, case in cases.items():
            figures[name][str(threads)] = case.figures()
            print(describe(name, figures[name][str(threads)]))
    every = [figure for by_threads in figures.values() for figure in by_threads.values()]
    summary = {
        "elements": args.elements,
        "dense_bytes": 4 * args.elements,
        "bandwidth_bytes_per_s": GBIT_BYTES,
        "load_average": round(os.getloadavg()[0], 1),
        "repeats": repeats,
        "memcpy_gb_s": {str(threads): round(rate, 2) for threads, rate in copies.items()},
        "compressors": figures,
        "none_costs_more_than_it_saves": all(figure["pays"] for figure in every),
    }
    print(json.dumps(summary))


class Case:
    """One compressor with its vector: how to encode, how to decode, and the seconds that each took."""

    def __init__(self, encode: Callable[[], Any], decode: Callable[[], Any], *, dense_bytes: int) -> None:
        self.encode, self.decode, self.dense_bytes = encode, decode, dense_bytes
        self.message_bytes = 0
        self.encode_s: list[float] = []
        self.decode_s: list[float] = []
        self.cpu_s: list[float] = []
        self.run()  # warm
        self.encode_s.clear()
        self.decode_s.clear()
        self.cpu_s.clear()

    def run(self) -> None:
        """Once more."""
        cpu_start, start = time.process_time(), time.perf_counter()
        self.message_bytes = self.encode()
        middle = time.perf_counter()
        self.decode()
        self.encode_s.append(middle - start)
        self.decode_s.append(time.perf_counter() - middle)
        self.cpu_s.append(time.process_time() - cpu_start)

    def figures(self) -> dict[str, Any]:
        """Medians."""
        encode_s, decode_s = median(self.encode_s), median(self.decode_s)
        saved_s = (self.dense_bytes - self.message_bytes) / GBIT_BYTES
        return {
            "message_bytes": self.message_bytes,
            "encode_gb_s": round(self.dense_bytes / encode_s / 1e9, 2),
            "decode_gb_s": round(self.dense_bytes / max(decode_s, 1e-9) / 1e9, 2) if decode_s > 1e-5 else None,
            "cost_ms": round((encode_s + decode_s) * 1e3, 2),
            "saved_ms": round(saved_s * 1e3, 2),
            "pays": encode_s + decode_s < saved_s,
            "cpu_cost_ms": round(median(self.cpu_s) * 1e3, 2),
            "least_cost_ms": round((min(self.encode_s) + min(self.decode_s)) * 1e3, 2),
        }


def codec_case(compression: Compression, num_elements: int) -> Case:
    """Gradients of different sizes in different places, as layers have them; a new one each time in turn."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(-2, 0, 64).repeat_interleave(-(-num_elements // 64))[:num_elements]
    vectors = [torch.randn(num_elements, generator=generator) * scale for _ in range(2)]
    codec = compression.codec(num_elements, torch.float32)
    out = torch.zeros(num_elements)
    held: list[torch.Tensor] = []

    def encode() -> int:
        vectors.reverse()
        held[:] = [codec.encode(vectors[0])]
        return held[0].numel()

    return Case(encode, lambda: codec.decode(held[0], out), dense_bytes=4 * num_elements)


def power_sgd_case(compression: PowerSGD) -> Case:
    """The whole reduction counts as the encode."""
    shapes = [torch.Size((POWER_SGD_SIDE, POWER_SGD_SIDE))]
    reducer = compression.reducer(shapes, torch.float32, torch.device("cpu"))
    gradient = torch.randn(shapes[0], generator=torch.Generator().manual_seed(0))

    def reduce() -> int:
        reducer.reduce([gradient], lambda tensor: None)
        return reducer.message_bytes

    return Case(reduce, lambda: None, dense_bytes=gradient.nbytes)


def measure_copy(num_elements: int, repeats: int) -> float:
    """Seconds of copy_."""
    source, target = torch.randn(num_elements), torch.zeros(num_elements)
    seconds = []
    for _ in range(max(repeats, 5)):
        start = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def describe(name: str, figure: dict[str, Any]) -> str:
    """One line."""
    decode = "     -" if figure["decode_gb_s"] is None else f"{figure['decode_gb_s']:6.2f}"
    return (
        f"  {name:24} {figure['message_bytes']:9} bytes  encode {figure['encode_gb_s']:6.2f}  decode {decode} GB/s  "
        f"costs {figure['cost_ms']:6.1f} ms (least {figure['least_cost_ms']:5.1f}, "
        f"processor {figure['cpu_cost_ms']:5.1f}), saves {figure['saved_ms']:6.1f} ms"
        f"{'' if figure['pays'] else '  DOES NOT PAY'}"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five compressors, three times each")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")
    parser.add_argument("--elements", type=int, default=4_000_000, help="components of the vector")
    parser.add_argument("--repeats", type=int, default=9, help="times each is measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
