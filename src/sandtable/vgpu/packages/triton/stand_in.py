"""The stand-in for Triton where it is not installed: enough to import, define, tune and launch kernels.

A kernel's body never runs, so `triton.language` needs no more than names (`language.py`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from sandtable.vgpu.packages.package import Fill
from sandtable.vgpu.packages.triton import launches
from sandtable.vgpu.packages.triton.descriptors import TensorDescriptor, create_tma_descriptor
from sandtable.vgpu.packages.triton.driver import GPUTarget, VirtualDriver, bench_once
from sandtable.vgpu.packages.triton.language import language_modules

__all__ = ["VERSION", "modules"]

VERSION = "3.6.0"
"""The release whose names the stand-in has."""


class KernelInterface:
    """What can be launched by `kernel[grid](...)`."""

    run: Callable[..., Any]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **options: self.run(*args, grid=grid, warmup=False, **options)

    def warmup(self, *args: Any, grid: Any = (1,), **options: Any) -> Any:
        return self.run(*args, grid=grid, warmup=True, **options)


class JITFunction(KernelInterface):
    """A kernel, or a function that kernels call."""

    run = launches.run

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn = fn
        self.signature = inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)
        self.constexprs = [place for place, name in enumerate(self.arg_names) if launches.is_constant(fn, name)]
        self.params = [
            SimpleNamespace(name=name, num=place, is_constexpr=place in self.constexprs, has_default=False)
            for place, name in enumerate(self.arg_names)
        ]
        self.module = fn.__module__
        self.pre_run_hooks: list[Callable[..., Any]] = []
        self.device_caches: dict[int, Any] = {}
        self.launch_metadata = options.get("launch_metadata")
        functools.update_wrapper(self, fn)

    @property
    def src(self) -> str:
        return inspect.getsource(self.fn)

    @property
    def cache_key(self) -> str:
        return f"{self.module}.{self.fn.__qualname__}"

    def _unsafe_update_src(self, source: str) -> None:
        """Take other source: nothing compiles it."""

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        self.pre_run_hooks.append(hook)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function a kernel."""
    return functools.partial(JITFunction, **options) if fn is None else JITFunction(fn, **options)


class Config:
    """One choice of meta-parameters for a kernel."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[..., Any] | None = None,
        ir_override: str | None = None,
        **_: Any,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.ir_override = ir_override

    def all_kwargs(self) -> dict[str, Any]:
        names = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
        options = {name: getattr(self, name) for name in names}
        return {**self.kwargs, **{name: value for name, value in options.items() if value is not None}}


class Autotuner(KernelInterface):
    """A kernel with several configurations: the first takes part, after those that the script prunes have gone."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Config],
        key: Sequence[str],
        prune_configs_by: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self.fn = fn
        self.arg_names = arg_names
        self.configs = list(configs) or [Config({})]
        self.keys = key
        prune = prune_configs_by or {}
        self.early_config_prune = prune.get("early_config_prune")
        self.perf_model = prune.get("perf_model")
        self.configs_top_k = prune.get("top_k", 1.0)
        self.cache: dict[Any, Config] = {}
        self.best_config = self.configs[0]
        self.base_fn = fn
        while not inspect.isfunction(self.base_fn):
            self.base_fn = self.base_fn.fn

    def run(self, *args: Any, **options: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config = self.prune_configs(options)[0] if len(self.configs) > 1 else self.configs[0]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **options, **config.all_kwargs()})
        return self.fn.run(*args, **options, **config.all_kwargs())

    def prune_configs(self, options: Mapping[str, Any]) -> list[Config]:
        """Return the configurations that the script's own functions leave, the best by its model first."""
        kept = self.configs
        if self.early_config_prune is not None:
            kept = list(self.early_config_prune(kept, self.nargs, **options))
        model = self.perf_model
        if model is not None:
            kept = sorted(kept, key=lambda config: model(**self.nargs, **options, **config.all_kwargs()))
        if not kept:
            raise RuntimeError("early_config_prune must leave at least one configuration, but it left none")
        return kept


def autotune(configs: Sequence[Config], key: Sequence[str], **options: Any) -> Callable[[Any], Autotuner]:
    """Give a kernel several configurations."""
    return lambda fn: Autotuner(fn, fn.arg_names, configs, key, **options)


class Heuristics(KernelInterface):
    """A kernel some of whose meta-parameters are computed from its arguments."""

    def __init__(self, fn: Any, arg_names: Sequence[str], values: Mapping[str, Callable[..., Any]]) -> None:
        self.fn = fn
        self.arg_names = arg_names
        self.values = values

    def run(self, *args: Any, **options: Any) -> Any:
        for name, compute in self.values.items():
            options[name] = compute({**dict(zip(self.arg_names, args, strict=False)), **options})
        return self.fn.run(*args, **options)


def heuristics(values: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    """Have meta-parameters computed."""
    return lambda fn: Heuristics(fn, fn.arg_names, values)


class TensorWrapper:
    """A tensor that a kernel sees with another type."""

    def __init__(self, base: Any, dtype: Any) -> None:
        self.base = base
        self.dtype = dtype
        self.shape = base.shape

    def data_ptr(self) -> int:
        return int(self.base.data_ptr())


def cdiv(x: int, y: int) -> int:
    """Divide and round up."""
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length() if n > 0 else 0


class TritonError(Exception):
    """What Triton's errors derive from."""


class OutOfResources(TritonError):
    """A kernel that needs more than a multiprocessor has: never raised here."""


def _compile(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "sandtable: triton.compile needs Triton's compiler, which is not installed; launch the kernel instead, which "
        "compiles nothing in a rehearsal"
    )


def _accept(*_: Any, **__: Any) -> None:
    return None


class _Knobs(SimpleNamespace):
    """Settings of Triton: any can be set, and one that was not is unset."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Knobs()
        setattr(self, name, value)
        return value

    def __bool__(self) -> bool:
        return False


_DRIVER = SimpleNamespace(active=VirtualDriver(), default=VirtualDriver(), set_active=_accept, reset_active=_accept)
_ERRORS = {
    "TritonError": TritonError,
    "OutOfResources": OutOfResources,
    "InterpreterError": type("InterpreterError", (TritonError,), {}),
    "PTXASError": type("PTXASError", (TritonError,), {}),
    "CompilationError": type("CompilationError", (TritonError,), {}),
    "CompileTimeAssertionFailure": type("CompileTimeAssertionFailure", (TritonError,), {}),
}
_JIT = {
    "JITFunction": JITFunction,
    "KernelInterface": KernelInterface,
    "TensorWrapper": TensorWrapper,
    "MockTensor": type("MockTensor", (), {"wrap_dtype": staticmethod(lambda value: value)}),
    "jit": jit,
    "reinterpret": TensorWrapper,
    "constexpr_function": lambda function: function,
}
_TUNING = {
    "Autotuner": Autotuner,
    "Config": Config,
    "Heuristics": Heuristics,
    "autotune": autotune,
    "heuristics": heuristics,
}
_COMPILER = {
    "CompiledKernel": launches.LaunchedKernel,
    "ASTSource": type("ASTSource", (), {}),
    "GPUTarget": GPUTarget,
    "CompilationError": _ERRORS["CompilationError"],
    "compile": _compile,
    "make_backend": _compile,
    "triton_key": lambda: VERSION,
}
_TESTING = {
    **dict.fromkeys(("do_bench", "do_bench_cudagraph", "do_bench_proton"), bench_once),
    "Benchmark": SimpleNamespace,
    "perf_report": lambda benchmarks: lambda function: function,
    "assert_close": _accept,
}
_NAMES: Mapping[str, Mapping[str, Any]] = {
    "triton.runtime": {**_JIT, **_TUNING, **_ERRORS, "driver": _DRIVER},
    "triton.runtime.jit": _JIT,
    "triton.runtime.autotuner": {**_TUNING, **_ERRORS},
    "triton.runtime.driver": {"driver": _DRIVER},
    "triton.runtime.errors": _ERRORS,
    "triton.runtime.cache": {"triton_key": lambda: VERSION, "knobs": _Knobs(), "default_cache_dir": lambda: ""},
    "triton.runtime.interpreter": {"InterpretedFunction": type("InterpretedFunction", (KernelInterface,), {})},
    "triton.compiler": _COMPILER,
    "triton.compiler.compiler": _COMPILER,
    "triton.compiler.errors": _ERRORS,
    "triton.backends": {"backends": {"nvidia": SimpleNamespace(driver=VirtualDriver)}},
    "triton.backends.compiler": _COMPILER,
    "triton.backends.driver": {"DriverBase": VirtualDriver, "GPUDriver": VirtualDriver},
    "triton.testing": _TESTING,
    "triton.errors": _ERRORS,
    "triton.knobs": {name: _Knobs() for name in ("runtime", "compilation", "autotuning", "nvidia", "cache")},
    "triton.tools": {},
    "triton.tools.tensor_descriptor": {"TensorDescriptor": TensorDescriptor},
    "triton.tools.experimental_descriptor": {
        **dict.fromkeys(("create_1d_tma_descriptor", "create_2d_tma_descriptor"), create_tma_descriptor),
        "TmaDescKernelParam": TensorDescriptor,
    },
}


def modules() -> dict[str, Fill]:
    """Return what each module of the stand-in is filled with, by its full name."""
    fills: dict[str, Fill] = {name: _filling(names) for name, names in _NAMES.items()}
    return {"triton": _fill_package, **fills, **language_modules()}


def _filling(names: Mapping[str, Any]) -> Fill:
    def fill(module: ModuleType) -> None:
        _import_below(module.__name__)
        vars(module).update(names)  # after them: `triton.runtime.driver` is a module and then an object

    return fill


def _fill_package(module: ModuleType) -> None:
    vars(module).update(
        {
            **_JIT,
            **_TUNING,
            **_ERRORS,
            "cdiv": cdiv,
            "next_power_of_2": next_power_of_2,
            "compile": _compile,
            "set_allocator": _accept,
            "must_use_result": lambda function: function,
            "aggregate": lambda kind: kind,
        }
    )
    _import_below("triton")
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.triton = module  # type: ignore[attr-defined]  # it was imported when there was none to be found


def _import_below(parent: str) -> None:
    """Import the modules right below one: a program may use them without importing them itself."""
    for name in (*_NAMES, "triton.language"):
        if name.rpartition(".")[0] == parent:
            importlib.import_module(name)
