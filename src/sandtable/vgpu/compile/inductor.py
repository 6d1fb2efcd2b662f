"""Inductor without Triton: the few places where it asks for a compiler, or for a card to measure kernels on."""

from __future__ import annotations

import copy
import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from sandtable.trace.kinds import LaunchKind
from sandtable.vgpu.compile.flex_attention import lower_flex_attention
from sandtable.vgpu.compile.fused_kernel import FusedKernel, KernelDescription, describe_kernel, name_in_script
from sandtable.vgpu.compile.known_values import small_graph, with_known_values
from sandtable.vgpu.compile.script_kernel import ScriptKernel, function_of_script
from sandtable.vgpu.compile.shared_cache import name_groups, share_code, share_keys
from sandtable.vgpu.compile.tilings import remember_tilings

__all__ = ["adaptations"]

_HEADER = """
    from torch._inductor.runtime.triton_heuristics import start_graph, end_graph
    from torch._C import _cuda_getCurrentRawStream as get_raw_stream
    try:
        import triton.tools.tensor_descriptor  # of kernels that the script wrote
    except ImportError:
        pass
"""
"""What the code around the kernels needs of what Inductor imports for Triton."""


def adaptations(core: ModuleType) -> dict[str, Callable[[ModuleType], None]]:
    """Return what is changed in which module of Inductor, and of what its keys are made from."""
    return {
        "torch._inductor.scheduler": _accept_devices,
        "torch._inductor.async_compile": _load_kernels,
        "torch._inductor.codecache": _adapt_keys,
        "torch._inductor.codegen.wrapper": _leave_out_triton,
        "torch._inductor.codegen.triton": _describe_kernels,
        "torch._inductor.compile_fx": lambda module: _adapt_entry(module, core),
        "torch._inductor.kernel.flex.flex_attention": lower_flex_attention,
        "torch._inductor.select_algorithm": _measure_nothing,
        "torch._inductor.runtime.coordinate_descent_tuner": _tune_nothing,
        "torch._inductor.tiling_utils": remember_tilings,
        "torch._inductor.output_code": lambda module: _adapt_graphs(module, core),
        "torch.distributed.device_mesh": name_groups,
    }


def _accept_devices(module: Any) -> None:
    module.has_triton = lambda: True


def _load_kernels(module: Any) -> None:
    def triton(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> FusedKernel | ScriptKernel:
        is_described = KernelDescription.read(source_code) is not None
        function = None if is_described else function_of_script(name_in_script(kernel_name))
        return FusedKernel(kernel_name, source_code) if function is None else ScriptKernel(function, source_code)

    module.AsyncCompile.triton = triton
    module.maybe_warm_pool = lambda: None  # processes that would compile


def _adapt_keys(module: Any) -> None:
    _name_releases(module)
    share_keys(module)


def _name_releases(module: Any) -> None:
    """Have keys of Inductor's caches name releases, not hash all files of torch and Triton again on every rank."""
    import torch

    release = hashlib.sha256(f"{torch.__version__} {torch.version.git_version}".encode()).digest()
    module.torch_key = lambda: release
    module.triton_key = lambda: getattr(sys.modules.get("triton"), "__version__", None)


def _measure_nothing(module: Any) -> None:
    """Have the first of several kernels for one operator win (`max-autotune`): none can be measured."""
    module.AlgorithmSelectorCache.benchmark_choice = classmethod(lambda cls, choice, arguments: 1.0)


def _tune_nothing(module: Any) -> None:
    """Have the first of several sizes of a kernel win (`coordinate_descent_tuning`)."""

    def autotune_single_field(fn: Callable[[int], float], init_val: int, *_: Any) -> int:
        return init_val

    module.CoordescTuner.autotune_single_field = staticmethod(autotune_single_field)


def _leave_out_triton(module: Any) -> None:
    from torch._inductor.utils import cache_on_self

    def write_triton_header_once(self: Any) -> None:
        self.imports.splice(_HEADER, strip=True)

    module.PythonWrapperCodegen.write_triton_header_once = cache_on_self(write_triton_header_once)


def _describe_kernels(module: Any) -> None:
    """Have kernels say in their source how much memory they touch."""
    import torch.utils._triton

    triton: Any = torch.utils._triton
    triton.triton_hash_with_backend = lambda: "sandtable"
    original = module.TritonKernel.codegen_kernel

    @functools.wraps(original)
    def codegen_kernel(self: Any, name: str | None = None) -> str:
        source: str = original(self, name)
        return source if type(self) is not module.TritonKernel else source + describe_kernel(self, source).write()

    module.TritonKernel.codegen_kernel = codegen_kernel


def _adapt_entry(module: Any, core: ModuleType) -> None:
    """Run graphs eagerly that Inductor cannot compile, and launch as one what it would put into a CUDA graph."""
    from torch._dynamo.exc import RestartAnalysis

    compile_all, compile_one = module.compile_fx, module.compile_fx_inner

    @functools.wraps(compile_one)
    def compile_fx_inner(graph: Any, example_inputs: Any, **options: Any) -> Any:
        """Compile a forward or a backward graph."""
        known = small_graph(graph, example_inputs)
        try:
            compiled = compile_one(graph, example_inputs, **options)
        except Exception as error:
            _note_failure(core, error)
            return _boxed(graph)
        return compiled if known is None else with_known_values(known, compiled, core)

    @functools.wraps(compile_all)
    def compile_fx(model: Any, example_inputs: Any, inner_compile: Any = compile_fx_inner, **options: Any) -> Any:
        """Compile what Dynamo has traced."""
        graph = copy.deepcopy(model.graph)
        try:
            return compile_all(model, example_inputs, inner_compile, **options)
        except RestartAnalysis:
            raise  # Dynamo traces once more, with a number of the script as a constant
        except Exception as error:
            _note_failure(core, error)
            model.graph = graph
            model.recompile()
            return model.forward

    module.compile_fx, module.compile_fx_inner = compile_fx, compile_fx_inner
    module.cudagraphify = functools.partial(_launch_as_graph, core)


def _boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` as AOTAutograd calls it: with a list, which is emptied so that inputs can be freed."""

    def run_boxed(inputs: list[Any]) -> Any:
        arguments = list(inputs)
        inputs.clear()
        return run(*arguments)

    run_boxed._boxed_call = True  # type: ignore[attr-defined]
    return run_boxed


def _note_failure(core: ModuleType, error: Exception) -> None:
    lines = str(error).strip().splitlines() or [""]
    core.note(
        "torch.compile",
        f"a graph ran operator by operator, because Inductor could not compile it: {type(error).__name__}: {lines[0]}",
    )


def _launch_as_graph(core: ModuleType, run: Callable[..., Any], static_input_idxs: Sequence[int] = (), **_: Any) -> Any:
    """Return what runs the kernels of a graph as one launch, from the second call on: the first warms up."""
    is_warm = False

    def launch(inputs: Any) -> Any:
        nonlocal is_warm
        if not is_warm:
            is_warm = True
            return run(inputs)
        with _Launching(core, LaunchKind.GRAPH):
            return run(inputs)

    return launch


def _adapt_graphs(module: Any, core: ModuleType) -> None:
    _mark_launches(module, core)
    share_code(module)


def _mark_launches(module: Any, core: ModuleType) -> None:
    """Mark everything that the code of a compiled graph launches, its matrix products included."""
    original = module.CompiledFxGraph.__call__

    @functools.wraps(original)
    def call(self: Any, inputs: Any) -> Any:
        with _Launching(core, LaunchKind.COMPILED):
            return original(self, inputs)

    module.CompiledFxGraph.__call__ = call


class _Launching:
    """What is recorded inside is launched that way, unless something around it is launched with less effort."""

    def __init__(self, core: ModuleType, kind: LaunchKind) -> None:
        self._core = core
        self._kind = kind

    def __enter__(self) -> None:
        self._before = self._core.set_launch(self._kind)
        if self._before > self._kind:
            self._core.set_launch(self._before)

    def __exit__(self, *_: object) -> None:
        self._core.set_launch(self._before)
