"""Writes the operators that have a kernel for the card into a JSON file: by dispatch key, with where it was registered.

On a virtual rank these are the kernels that a script would run; in an ordinary process of a CUDA build, the card's own.
"""

import json
import re
import sys
from pathlib import Path

import torch

import sandtable

KEYS = ("CUDA", "SparseCUDA", "SparseCsrCUDA", "QuantizedCUDA", "NestedTensorCUDA")
COMPOSITES = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def registered_at(name: str, key: str) -> str:
    """Where the kernel that would run was registered."""
    found = re.search(rf"^{key}: registered at (\S+)", torch._C._dispatch_dump_table(name), re.MULTILINE)
    return found[1] if found else ""


def has_composite(name: str) -> bool:
    """Whether torch has a kernel that would go before a fallback."""
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in COMPOSITES)


names = {key: torch._C._dispatch_get_registrations_for_dispatch_key(key) for key in KEYS}
kernels = {key: {name: registered_at(name, key) for name in names[key]} for key in KEYS}
composites = [name for name in torch._C._dispatch_get_all_op_names() if has_composite(name)]
Path(sys.argv[1]).write_text(json.dumps({"kernels": kernels, "composites": composites}))
if torch.cuda.is_available():  # a run without work on the GPU fails, as one without a step does
    torch.zeros(1, device="cuda")
sandtable.step()
