"""Speed of each compressor and its inverse, and whether it pays off at 1 Gbit/s.

    python bench/compression.py
    python bench/compression.py --quick

Each compressor, with error feedback as users get it, encodes and decodes a vector of four million float32 (a small CNN,
or a bucket of 16 MB), on one thread and on two; the baseline is torch's copy_ of the same vector. The compressors take
turns, so that other work on the machine affects all of them alike. Figures are medians; `least_` is the fastest. Each
compressor runs once before timing, so that its residual exists and its C++ is compiled.

A message saves (dense bytes - message bytes) / 125 MB/s on the wire and costs one encode and one decode. It pays off if
the cost is lower. PowerSGD sends no single message: its timing covers the whole reduction of a 2048 x 2048 matrix on
one rank. The last line is a JSON object:

elements, dense_bytes, bandwidth_bytes_per_s, load_average, repeats
memcpy_gb_s           by threads: speed of copy_
compressors           by name, then by threads:
  message_bytes         bytes on the wire instead of dense_bytes
  encode_gb_s, decode_gb_s  speed, in bytes of the dense vector
  cost_ms, saved_ms     encode + decode, and the time saved on the wire
  pays                  cost < saved
  least_cost_ms         fastest encode + fastest decode
  cpu_cost_ms           processor time of both, on all threads
none_costs_more_than_it_saves   whether every compressor pays off, on one thread and on two
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from sandtable.methods.data import QSGD, Compression, Half, MomentumCorrection, PowerSGD, RandomK, Sign, Threshold, TopK
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
    """Print one line per compressor, then everything as JSON."""
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
    """One compressor with its vector, and the seconds that encoding and decoding took."""

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
        """Encode and decode once more."""
        cpu_start, start = time.process_time(), time.perf_counter()
        self.message_bytes = self.encode()
        middle = time.perf_counter()
        self.decode()
        self.encode_s.append(middle - start)
        self.decode_s.append(time.perf_counter() - middle)
        self.cpu_s.append(time.process_time() - cpu_start)

    def figures(self) -> dict[str, Any]:
        """Return the medians."""
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
    """Make a case with two vectors in turn, whose scale varies along the vector as it does between layers."""
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
    """Make a case whose encode is the whole reduction."""
    shapes = [torch.Size((POWER_SGD_SIDE, POWER_SGD_SIDE))]
    reducer = compression.reducer(shapes, torch.float32, torch.device("cpu"))
    gradient = torch.randn(shapes[0], generator=torch.Generator().manual_seed(0))

    def reduce() -> int:
        reducer.reduce([gradient], lambda tensor: None)
        return reducer.message_bytes

    return Case(reduce, lambda: None, dense_bytes=gradient.nbytes)


def measure_copy(num_elements: int, repeats: int) -> float:
    """Return the seconds of copy_."""
    source, target = torch.randn(num_elements), torch.zeros(num_elements)
    seconds = []
    for _ in range(max(repeats, 5)):
        start = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def describe(name: str, figure: dict[str, Any]) -> str:
    """Format one line."""
    decode = "     -" if figure["decode_gb_s"] is None else f"{figure['decode_gb_s']:6.2f}"
    return (
        f"  {name:24} {figure['message_bytes']:9} bytes  encode {figure['encode_gb_s']:6.2f}  decode {decode} GB/s  "
        f"costs {figure['cost_ms']:6.1f} ms (least {figure['least_cost_ms']:5.1f}, "
        f"processor {figure['cpu_cost_ms']:5.1f}), saves {figure['saved_ms']:6.1f} ms"
        f"{'' if figure['pays'] else '  DOES NOT PAY'}"
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five compressors, a million elements, three times each")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="thread counts (default 1 2)")
    parser.add_argument("--elements", type=int, help="components of the vector (default 4 million)")
    parser.add_argument("--repeats", type=int, default=9, help="measurements per compressor (default 9)")
    args = parser.parse_args()
    args.elements = args.elements or (1_000_000 if args.quick else 4_000_000)
    return args


if __name__ == "__main__":
    main()
