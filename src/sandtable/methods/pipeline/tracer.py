"""The tracer: torch.fx, with a real value behind every proxy.

While torch.fx records what a model's forward does, every step also runs on the example inputs. So questions that Python
asks about a number (`if x.size(1) > 512`, `for i in range(depth)`, `len(x)`) have answers, and shapes and bytes are
known. A question about a tensor's *values* has none: the answer would hold for this minibatch only.

A module is a *leaf*, recorded as one call, if torch.nn defines it, if it contains no modules, or if tracing it failed.
"""

from __future__ import annotations

import inspect
import operator
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import Attribute, TraceError
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["DTYPE", "KIND", "OVERWRITES", "SHAPES", "SIZE_BYTES", "Refused", "Tracer", "tensors_in"]

KIND = "sandtable_kind"
"""In a node's meta: "tensor", "tensors" (a tuple with tensors in it) or "number" (anything else)."""
SIZE_BYTES = "sandtable_size_bytes"
DTYPE = "sandtable_dtype"
SHAPES = "sandtable_shapes"
"""The node's value, with tensors on the meta device."""
OVERWRITES = "sandtable_overwrites"
"""Nodes whose tensors share the memory that this node writes to."""

_CONTAINERS = (nn.Sequential, nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer)
_FACTORIES = ("empty", "ones", "rand", "randn", "zeros")
_CONSTANT = (bool, int, float, str, torch.dtype, torch.layout, type(None))


class Refused(Exception):
    """Tracing failed with `error` inside the module named `path` ("" is the model itself).

    The message gives the reason, and the place in the model's own code.
    """

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(f"{_reason(error)}{_place(error)}")
        self.path = path


class Tracer(fx.Tracer):
    """Traces `model(*inputs)`; modules named in `whole` are leaves."""

    proxy_buffer_attributes = True

    def __init__(self, inputs: Sequence[Tensor], whole: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.returned: Any = None
        """What forward returned, as proxies."""
        self._inputs = inputs
        self._plain_values: dict[fx.Node, Any] = {}
        self._held: WeakValueDictionary[fx.Node, _Held] = WeakValueDictionary()
        self._kept: list[_Held] = []
        self._memory: dict[fx.Node, set[StorageWeakRef]] = {}
        self._whole = whole
        self._is_running = False
        self._modes = _modes()

    def trace(self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        with _sizes_as_tuples(), self._instances(root):
            return super().trace(root, concrete_args)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Make one placeholder per input given; other arguments of forward keep their defaults."""
        proxies = []
        for number, value in enumerate(self._inputs):
            proxies.append(self.proxy(self.create_node("placeholder", f"input_{number}", (), {})))
            proxies[-1].held = self.keep(proxies[-1].node, value)

        def forward(*arguments: Any) -> Any:
            self.returned = root_fn(*arguments)
            return self.returned

        return forward, [self.root, *proxies]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self._whole or next(m.children(), None) is None:
            return True
        return m.__module__.startswith("torch.nn") and not isinstance(m, _CONTAINERS)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._is_running:
            return forward(*args, **kwargs)
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        try:
            with self._instances(m):
                return super().call_module(m, forward, args, kwargs)
        except Refused:
            raise
        except Exception as error:
            raise Refused(path, error) from error

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return attr_val if self._is_running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> _Proxy:
        return _Proxy(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> fx.Proxy:
        if _modes() != self._modes:
            raise TraceError("it switches gradients or autocast on or off for a part of its work")
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        assert isinstance(proxy, _Proxy)
        proxy.held = self._execute(proxy.node)
        return proxy

    def create_arg(self, a: Any) -> Any:
        if is_dataclass(type(a)) and issubclass(type(a), dict):  # as Hugging Face's models return their results
            argument: Any = self.create_node("call_function", type(a), (), {key: self.create_arg(a[key]) for key in a})
        else:
            argument = super().create_arg(a)
        if isinstance(argument, fx.Node) and KIND not in argument.meta:
            self._kept.append(self._execute(argument))
        return argument

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.plain(obj, "if"))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        value = self.value(obj.node)
        return iter([obj[index] for index in range(len(value))])  # type: ignore[index]

    def keys(self, obj: fx.Proxy) -> Any:
        return self.value(obj.node).keys()

    def plain(self, obj: fx.Proxy, operation: str) -> Any:
        """Return the number behind a proxy, for Python to use."""
        value = self.value(obj.node)
        if isinstance(value, Tensor):
            raise TraceError(f"Python asks for the value of a tensor ({operation}), which differs in every minibatch")
        return value

    @contextmanager
    def _instances(self, module: Any) -> Iterator[None]:
        """Within the module's source file, let `isinstance(x, Tensor)` look at the value behind a proxy.

        A proxy itself must not claim to be a tensor: torch's C++ would believe it.
        """

        def is_instance(what: Any, kinds: Any) -> bool:
            if isinstance(what, fx.Proxy) and isinstance(self.value(what.node), kinds):
                return True
            return isinstance(what, kinds)

        written: dict[str, Any] = getattr(inspect.unwrap(type(module).forward), "__globals__", {})
        is_first = "isinstance" not in written
        if is_first:
            written["isinstance"] = is_instance
        try:
            yield
        finally:
            if is_first:
                written.pop("isinstance", None)

    def value(self, part: Any) -> Any:
        """Return the value of a node, while it can still be read; anything else is its own value."""
        if not isinstance(part, fx.Node):
            return part
        return self._plain_values[part] if part in self._plain_values else self._held[part].value

    def _execute(self, node: fx.Node) -> _Held:
        """Run the node on real values, and keep the result."""
        args, kwargs = (map_aggregate(arguments, self.value) for arguments in (node.args, node.kwargs))
        before = {source: _version(self.value(source)) for source in node.all_input_nodes}
        self._is_running = True
        try:
            with torch.no_grad():
                value = self._result(node, args, kwargs)  # type: ignore[arg-type]
        finally:
            self._is_running = False
        written = [source for source, version in before.items() if _version(self.value(source)) != version]
        if written:
            memory = set().union(*(self._memory[source] for source in written))
            node.meta[OVERWRITES] = [other for other, own in self._memory.items() if own & memory]
        return self.keep(node, value)

    def _result(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.root)
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def keep(self, node: fx.Node, value: Any) -> _Held:
        """Keep the node's value while the returned object lives, and describe it in the node's meta."""
        held, tensors = _Held(value), list(tensors_in(value))
        if tensors:
            self._held[node] = held
            self._memory[node] = {_memory(tensor) for tensor in tensors}
        else:
            self._plain_values[node] = value
        node.meta[SHAPES] = _map_tensors(value, lambda tensor: tensor.to("meta"))
        node.meta[KIND] = "tensor" if isinstance(value, Tensor) else "tensors" if tensors else "number"
        node.meta[DTYPE] = tensors[0].dtype if tensors else None
        node.meta[SIZE_BYTES] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return held


class _Held:
    """A value that lives as long as a proxy for it; then nothing can ask for it, and its memory is freed."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


class _Proxy(fx.Proxy):
    """Stands for a tensor or a number of the model, and answers as the value behind it would where that is allowed."""

    tracer: Tracer
    held: _Held

    def __getattr__(self, k: str) -> Any:
        value = getattr(self.tracer.value(self.node), k)
        if callable(value):
            return Attribute(self, k)
        if isinstance(value, _CONSTANT):
            return value
        return self.tracer.create_proxy("call_function", getattr, (self, k), {})

    def __len__(self) -> int:
        return len(self.tracer.value(self.node))

    def __index__(self) -> int:
        return operator.index(self.tracer.plain(self, "index"))

    def __int__(self) -> int:
        return int(self.tracer.plain(self, "int"))

    def __float__(self) -> float:
        return float(self.tracer.plain(self, "float"))

    def __contains__(self, item: Any) -> bool:
        return item in self.tracer.plain(self, "in")


@contextmanager
def _sizes_as_tuples() -> Iterator[None]:
    """Turn `torch.ones(rows, columns)`, which takes no proxies, into `torch.ones((rows, columns))`, which does."""

    def tupled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*size: Any, **options: Any) -> Tensor:
            has_proxy = len(size) > 1 and any(issubclass(type(length), fx.Proxy) for length in size)
            return make(size, **options) if has_proxy else make(*size, **options)

        return made

    before = {name: getattr(torch, name) for name in _FACTORIES}
    try:
        for name, make in before.items():
            setattr(torch, name, tupled(make))
        yield
    finally:
        for name, make in before.items():
            setattr(torch, name, make)


def _modes() -> tuple[bool, ...]:
    autocast = (torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the nested value with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_map_tensors(item, change) for item in value]
    return value


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else 0


def _memory(tensor: Tensor) -> StorageWeakRef:
    """Return a weak reference, equal for tensors that share memory and for no others."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _reason(error: Exception) -> str:
    first = "".join(str(error).strip().splitlines()[:1])
    return first if isinstance(error, TraceError) and first else f"{type(error).__name__} {first}".strip()


def _place(error: Exception) -> str:
    """Return the last line of the model's own code in the traceback."""
    others = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
