"""The compiler at work: what it traces is not the script's own work, and where it breaks a graph is noted."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sandtable.native import cache_directory
from sandtable.vgpu import packages
from sandtable.vgpu.compile import inductor

__all__ = ["follow_compiler"]

_REASON_LENGTH = 300
_OURS = str(Path(__file__).parents[2])


def follow_compiler(core: ModuleType, *, stop_if_done: Callable[[], None]) -> dict[str, Callable[[ModuleType], None]]:
    """Follow torch.compile in this process; return what is changed in which module when it is imported.

    `stop_if_done` is called before a compilation, and ends the script if all wanted steps have been made.
    """
    import torch
    from torch._C._dynamo import guards
    from torch._dynamo import callback, symbolic_convert, trace_rules, utils
    from torch._dynamo import guards as dynamo_guards
    from torch._functorch import config as functorch_config
    from torch._inductor import config

    allocation: Any = guards
    allocation._empty_strided_cuda = _empty_strided  # torch's own does not ask the dispatcher
    torch_core: Any = torch._C
    torch_core._conv_determine_backend_memory_format = _convolution_format  # a CPU build's own has no cuDNN in view

    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # that Triton is missing
    reporting: Any = utils
    reporting.has_triton = lambda: False  # it asks for the version of a module that it did not import
    _trace_replacements_only(trace_rules)
    # What Inductor writes is code of a library, and no other process may take it for that of a run on a real card.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = inductor_directory()
    config.compile_threads = 1  # nothing is left to compile
    config.max_autotune_gemm_backends = "ATEN"
    # A graph is kept for later ranks once its backward pass is compiled, which that of a warm-up would never be.
    functorch_config.force_non_lazy_backward_lowering = True
    # So is one with autograd functions of the script: what they do is in the graph, which is in the cache's key.
    functorch_config.autograd_cache_allow_custom_autograd_functions = True
    timing: Any = dynamo_guards
    timing.profile_guard_manager = lambda *_: 0.0  # flushes the processor's caches for a line in a log

    @callback.on_compile_start
    def begin(_: Any) -> None:
        stop_if_done()
        core.set_compiling(True)

    @callback.on_compile_end
    def end(_: Any) -> None:
        core.set_compiling(False)

    _note_graph_breaks(symbolic_convert, core)
    return inductor.adaptations(core)


def inductor_directory() -> str:
    """Return where Inductor keeps the code that it writes, which later ranks and runs take from there.

    The kernels in it are described by the code of this package, so a change of that begins anew.
    """
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return str(cache_directory() / f"inductor-{digest.hexdigest()[:16]}")


def _trace_replacements_only(trace_rules: ModuleType) -> None:
    """Have hooks of ours run as they are, and trace functions that replace those of a package, as it would theirs."""
    replacements = Path(packages.__file__).parent
    ours = [path for path in replacements.parent.iterdir() if path != replacements]
    trace_rules.SKIP_DIRS.extend(str(path) for path in [*ours, replacements / "kernels.py"])
    trace_rules._recompile_re()


def _convolution_format(x: Any, weight: Any, backend: Any) -> Any:
    from sandtable.vgpu.shape_functions import convolution_format

    return convolution_format(x, weight)


def _empty_strided(size: Any, stride: Any, dtype: Any) -> Any:
    import torch

    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _in_one_line(reason: str) -> str:
    """Return Dynamo's reason without its first line, which names a bytecode, and without its hints."""
    lines = [line.strip() for line in reason.partition("Hint:")[0].splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Encountered graph break"):
        del lines[0]
    return " ".join(lines)[:_REASON_LENGTH]


def _note_graph_breaks(module: Any, core: ModuleType) -> None:
    original = module.InstructionTranslatorBase.log_graph_break

    @functools.wraps(original)
    def log_graph_break(self: Any, code_options: Any, reason: str, exc: Any, *args: Any, **options: Any) -> Any:
        stack = getattr(exc, "real_stack", None)
        if not exc.logged and not (stack and stack[-1].filename.startswith(_OURS)) and _OURS not in reason:
            place = f" at {stack[-1].filename}:{stack[-1].lineno}" if stack else ""
            core.note("graph break", f"torch.compile ends a graph{place}: {_in_one_line(reason)}")
        return original(self, code_options, reason, exc, *args, **options)

    module.InstructionTranslatorBase.log_graph_break = log_graph_break
