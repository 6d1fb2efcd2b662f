"""The tracer: torch.fx, with a real value behind every proxy.

While torch.fx writes down what a model's forward does, every step is carried out on the example inputs beside it. So a
question that Python asks of a number (`if x.size(1) > 512`, `for i in range(depth)`, `len(x)`) has an answer, and
shapes and bytes are known. A question about a tensor's *values* has none: the answer would hold for this minibatch
only.

A module is a *leaf*, written down as one call, if torch.nn has it, if it has no modules inside, or if it could not be
traced when it was tried.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import Attribute, TraceError
from torch.multiprocessing.reductions import StorageWeakRef

from sandtable.methods.pipeline.refused import Refused

__all__ = ["DTYPE", "KIND", "OVERWRITES", "SHAPES", "SIZE_BYTES", "Tracer", "tensors_in"]

KIND = "sandtable_kind"
"""In a node's meta: "tensor", "tensors" (a tuple with tensors in it) or "number" (anything else)."""
SIZE_BYTES = "sandtable_size_bytes"
DTYPE = "sandtable_dtype"
SHAPES = "sandtable_shapes"
"""What the node stands for, with tensors on the meta device."""
OVERWRITES = "sandtable_overwrites"
"""Nodes whose tensors share the memory that this node writes to."""

_CONTAINERS = (nn.Sequential, nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer)
_FACTORIES = ("empty", "ones", "rand", "randn", "zeros")
_CONSTANT = (bool, int, float, str, torch.dtype, torch.layout, type(None))


class Tracer(fx.Tracer):
    """Traces `model(*inputs)`; modules named in `whole` are leaves."""

    proxy_buffer_attributes = True

    def __init__(self, inputs: Sequence[Tensor], whole: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.returned: Any = None
        """What forward returned, made of proxies."""
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
        """One placeholder for each input given; other arguments of forward keep their defaults."""
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
            raise TraceError("gradients or autocast are switched on or off for a part of it")
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        assert isinstance(proxy, _Proxy)
        proxy.held = self._carry_out(proxy.node)
        return proxy

    def create_arg(self, a: Any) -> Any:
        if is_dataclass(type(a)) and issubclass(type(a), dict):  # as Hugging Face's models return their results
            found: Any = self.create_node("call_function", type(a), (), {key: self.create_arg(a[key]) for key in a})
        else:
            found = super().create_arg(a)
        if isinstance(found, fx.Node) and KIND not in found.meta:
            self._kept.append(self._carry_out(found))
        return found

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.plain(obj, "if"))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        value = self.value(obj.node)
        return iter([obj[k] for k in range(len(value))])  # type: ignore[index]

    def keys(self, obj: fx.Proxy) -> Any:
        return self.value(obj.node).keys()

    def plain(self, obj: fx.Proxy, asked: str) -> Any:
        """The number behind a proxy, for Python to go on with."""
        value = self.value(obj.node)
        if isinstance(value, Tensor):
            raise TraceError(f"Python asks for the value of a tensor ({asked}), which each minibatch answers anew")
        return value

    @contextmanager
    def _instances(self, module: Any) -> Iterator[None]:
        """Where the module's forward is written, `isinstance(x, Tensor)` is answered by the value behind a proxy.

        A proxy must not say so itself: torch's C++ would believe it.
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
        """What a node stands for, while somebody could still read it; anything else stands for itself."""
        if not isinstance(part, fx.Node):
            return part
        return self._plain_values[part] if part in self._plain_values else self._held[part].value

    def _carry_out(self, node: fx.Node) -> _Held:
        """Do for real what the node says, and keep what came of it."""
        args, kwargs = (map_aggregate(each, self.value) for each in (node.args, node.kwargs))
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
            node.meta[OVERWRITES] = [each for each, own in self._memory.items() if own & memory]
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
        """What the node stands for, as long as what is returned lives, and what others want to know of it."""
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
    """A value that lives as long as a proxy for it: then nobody can ask for it any more, and its memory is free."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


class _Proxy(fx.Proxy):
    """Stands for a tensor or a number of the model; says what the value behind it would say, as far as it may."""

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
    """`torch.ones(rows, columns)` does not take proxies; `torch.ones((rows, columns))` does."""

    def tupled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*size: Any, **options: Any) -> Tensor:
            has_proxy = len(size) > 1 and any(issubclass(type(each), fx.Proxy) for each in size)
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
    """The tensors of a result, however they are packed."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with other tensors in it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(each, change) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_map_tensors(each, change) for each in value]
    return value


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else 0


def _memory(tensor: Tensor) -> StorageWeakRef:
    """Equal for tensors that share memory; it keeps none, but no other memory will be taken for the same."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
