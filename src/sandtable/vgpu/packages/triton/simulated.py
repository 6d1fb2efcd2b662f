"""Simulated programs: one program of a Triton kernel runs as plain Python on blocks that have only a shape and a type.

Numbers that steer a program are there: its arguments, its place in the grid, the block sizes. So loops run as often as
on the card, and each product (`tl.dot`) adds its operations. What would be loaded from memory is unknown: a program
whose loops or branches depend on it cannot be followed, and `Unknown` is raised.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["Counter", "Unknown", "run_program"]

_MAX_CALLS = 100_000
"""Calls of the language per program, which take about a microsecond each."""

_REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum", "reduce_or"})
_INTEGERS: dict[str, Callable[..., Any]] = {
    "cdiv": lambda a, b: -(-a // b),
    "minimum": min,
    "maximum": max,
    "next_power_of_2": lambda n: 1 << max(int(n) - 1, 0).bit_length(),
    "abs": abs,
}
_DOTS = frozenset({"dot", "dot_scaled"})


class Unknown(Exception):
    """A program depends on a value that is not there, or uses the language in a way that is not known here."""


@dataclass(slots=True)
class Counter:
    """The operations of matrix products so far, by the type of their operands."""

    flops: dict[str, int] = field(default_factory=dict)
    num_calls: int = 0

    def add(self, dtype: str, flops: int) -> None:
        self.flops[dtype] = self.flops.get(dtype, 0) + flops

    def call(self) -> None:
        self.num_calls += 1
        if self.num_calls > _MAX_CALLS:
            raise Unknown("the program is too long")


class Number(int):
    """An integer that a program computes with, as the language's scalars: `pid.to(tl.int64)`."""

    def to(self, *_: Any, **__: Any) -> Number:
        return self

    cast = to


class Block:
    """A block of elements, or of pointers to them, with a shape and an element type; also a scalar, without a shape."""

    def __init__(self, shape: Sequence[int] = (), dtype: str = "", stored: Sequence[int] | None = None) -> None:
        self.shape = tuple(Number(size) for size in shape)
        self.dtype = _Type(dtype)
        self._stored = stored
        self.type = self.dtype

    def __getitem__(self, index: Any) -> Block:
        sizes, shape = iter(self.shape), []
        for part in index if isinstance(index, tuple) else (index,):
            if part is None:
                shape.append(1)
            elif isinstance(part, slice):
                shape.append(next(sizes, 1))
            else:
                raise Unknown("a block is indexed by a number")
        return Block((*shape, *sizes), self.dtype.name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "T":
            return Block(self.shape[::-1], self.dtype.name)
        if name in ("load", "gather") and self._stored is not None:
            stored = self._stored
            return lambda *_, **__: Block(stored, self.dtype.name)
        if name in ("store", "scatter", "atomic_add"):
            return lambda *_, **__: None
        return lambda *args, **options: _method(name, self, args, options)

    def __bool__(self) -> bool:
        raise Unknown("a branch depends on a value")

    def __index__(self) -> int:
        raise Unknown("a loop depends on a value")

    __int__ = __index__
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class _Type:
    """An element type, and what it points to: itself."""

    name: str

    @property
    def element_ty(self) -> _Type:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("is_"):
            kind = name.removeprefix("is_").removesuffix("ing")
            return lambda *_: self.name.startswith({"fp": "float", "bf16": "bfloat"}.get(kind, kind))
        return lambda *_, **__: self


def run_program(
    function: Callable[..., Any], arguments: dict[str, Any], place: Sequence[int], grid: Sequence[int], counter: Counter
) -> None:
    """Run the program at `place` of the grid, and count its products."""
    machine = _Machine(tuple(place), tuple(grid), counter)
    try:
        machine.function(function)(**{name: machine.argument(value) for name, value in arguments.items()})
    except Unknown:
        raise
    except Exception as error:  # a kernel may use anything of the language, which raises what it likes here
        raise Unknown(f"{type(error).__name__}: {error}") from error


class _Machine:
    """The language as one program sees it."""

    def __init__(self, place: tuple[int, ...], grid: tuple[int, ...], counter: Counter) -> None:
        self._place = (*place, 0, 0)
        self._grid = (*grid, 1, 1)
        self._counter = counter

    def argument(self, value: Any) -> Any:
        import torch

        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
            return value
        if isinstance(value, int):
            return Number(value)
        if isinstance(value, torch.Tensor):
            return Block((), _name(value.dtype))
        if isinstance(value, (tuple, list)):
            return tuple(self.argument(item) for item in value)
        base = getattr(value, "base", None)
        if isinstance(base, torch.Tensor):
            return Block((), _name(base.dtype), tuple(value.block_shape) if hasattr(value, "block_shape") else None)
        if isinstance(value, torch.dtype) or not hasattr(value, "fn"):
            return self._named(value)
        return self.function(value.fn)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a kernel's function with the names around it replaced by those of the simulated language."""
        if not isinstance(function, FunctionType):
            raise Unknown(f"{function!r} has no Python code")
        names = {name: self._seen(value) for name, value in function.__globals__.items() if name in _used(function)}
        cells = tuple(_cell(self._seen(cell.cell_contents)) for cell in function.__closure__ or ())
        builtins = {
            "range": self._range,
            "min": min,
            "max": max,
            "float": float,
            "int": int,
            "len": len,
            "print": _nothing,
        }
        made = FunctionType(function.__code__, {**names, "__builtins__": builtins}, function.__name__, None, cells)
        made.__kwdefaults__ = {name: self.argument(value) for name, value in (function.__kwdefaults__ or {}).items()}
        made.__defaults__ = tuple(self.argument(value) for value in function.__defaults__ or ()) or None
        return made

    def _seen(self, value: Any) -> Any:
        """Return what a name outside a kernel's function stands for."""
        if isinstance(value, ModuleType):
            return _Language(self) if value.__name__.partition(".")[0] == "triton" else _Module(self, value)
        if hasattr(value, "fn") and callable(value):
            inner = value.fn
            return self._named(inner) if _is_of_language(inner) else _later(lambda: self.function(inner))
        return (
            self.argument(value) if not callable(value) or type(value).__name__ == "constexpr" else self._named(value)
        )

    def _named(self, value: Any) -> Any:
        name = getattr(value, "__name__", None) or str(value)
        return self.name(name.rpartition(".")[2])

    def _range(self, *bounds: Any, **_: Any) -> Any:
        return map(Number, range(*(operator.index(bound) for bound in bounds)))

    # ---- the language ----

    def name(self, name: str) -> Any:
        """Return what `tl.<name>` is."""
        if name in ("range", "static_range"):
            return self._range
        if name == "constexpr":
            return lambda value=None: self.argument(value)
        if name in _TYPES:
            return _Type(_TYPES[name])
        if name in ("math", "extra", "libdevice", "cuda", "language", "standard", "core"):
            return _Language(self)
        return lambda *args, **options: self._call(name, args, options)

    def _call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._counter.call()
        name = name.removeprefix("_experimental_")
        if name in ("program_id", "num_programs"):
            axis = operator.index(args[0] if args else options.get("axis", 0))
            return Number((self._place if name == "program_id" else self._grid)[axis])
        if name in _DOTS:
            return self._dot(name, args, options)
        if name == "arange":
            return Block((operator.index(args[1]) - operator.index(args[0]),), "int32")
        if name in ("zeros", "full", "rand", "randn", "randint"):
            return self._made(name, args, options)
        if name in ("make_block_ptr", "make_tensor_descriptor"):
            stored = tuple(options["block_shape"] if "block_shape" in options else args[4 if "ptr" in name else 3])
            base = args[0] if args else options["base"]
            return Block(stored if "ptr" in name else (), base.dtype.name, stored)
        return _method(name, args[0] if args else Block(), args[1:], options)

    def _made(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Block:
        if name.startswith("rand"):
            return Block(args[1].shape, "float32")
        shape = args[0] if args else options["shape"]
        dtype = options.get("dtype", args[-1])
        return Block(shape if isinstance(shape, (tuple, list)) else (shape,), getattr(dtype, "name", "float32"))

    def _dot(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Block:
        a = args[0] if args else options["input"]
        b = args[1] if len(args) > 1 and name == "dot" else options.get("other", args[3] if len(args) > 3 else None)
        if not isinstance(a, Block) or not isinstance(b, Block):
            raise Unknown("a product of no blocks")
        *batch, m, k = a.shape
        dtype = a.dtype.name
        if dtype == "float32" and options.get("input_precision") != "ieee" and options.get("allow_tf32", True):
            dtype = "tf32"
        columns = b.shape[-1]
        self._counter.add(dtype, 2 * prod(batch) * m * k * columns)
        return Block((*batch, m, columns), "float32")


class _Language:
    """`tl` and the modules below it."""

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return self._machine.name(name)


class _Module:
    """Another module that a kernel takes kernel functions from."""

    def __init__(self, machine: _Machine, module: ModuleType) -> None:
        self._machine, self._module = machine, module

    def __getattr__(self, name: str) -> Any:
        return self._machine._seen(getattr(self._module, name))


def _method(name: str, first: Any, rest: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call a function of the language that is also a method of blocks."""
    if name in _INTEGERS and all(isinstance(value, int) for value in (first, *rest)):
        return Number(_INTEGERS[name](first, *rest))
    if name == "swizzle2d":
        return _swizzled(first, *rest, *options.values())
    if name in ("multiple_of", "max_contiguous", "max_constancy", "advance", "assume", "cast", "to"):
        dtype = rest[0] if rest and name in ("to", "cast") else options.get("dtype")
        return Block(first.shape, dtype.name) if isinstance(dtype, _Type) and isinstance(first, Block) else first
    if name in (
        "static_assert",
        "static_print",
        "device_print",
        "device_assert",
        "debug_barrier",
        "store",
        "atomic_add",
    ):
        return None
    if not isinstance(first, Block):
        first = next((value for value in (*rest, *options.values()) if isinstance(value, Block)), Block())
    if name in _REDUCTIONS:
        return _reduced(first, rest, options)
    if name in ("trans", "permute"):
        order = rest[0] if rest and isinstance(rest[0], (tuple, list)) else rest
        return Block([first.shape[place] for place in order] if order else first.shape[::-1], first.dtype.name)
    if name in ("reshape", "view", "broadcast_to", "ravel"):
        shape = rest[0] if rest and isinstance(rest[0], (tuple, list)) else rest or options.get("shape", ())
        return Block(shape or (prod(first.shape),), first.dtype.name)
    if name == "expand_dims":
        shape = list(first.shape)
        shape.insert(operator.index(rest[0] if rest else options["axis"]) % (len(shape) + 1), 1)
        return Block(shape, first.dtype.name)
    if name == "split":
        return tuple(Block(first.shape[:-1], first.dtype.name) for _ in range(2))
    if name in ("join", "interleave"):
        *sizes, last = _elementwise((first, *rest)).shape
        return Block((*sizes, last, 2) if name == "join" else (*sizes, 2 * last), first.dtype.name)
    if name in ("cat", "histogram", "topk", "gather", "associative_scan"):
        raise Unknown(f"tl.{name}")
    return _elementwise((first, *rest, *options.values()))


def _swizzled(row: Any, column: Any, rows: Any, columns: Any, height: Any) -> tuple[Any, Any]:
    """Return the place of a tile where groups of rows are visited column by column."""
    place = row * columns + column
    if not isinstance(place, int):
        return Block((), "int32"), Block((), "int32")
    first = place // (height * columns) * height
    height = min(rows - first, height)
    within = place % (height * columns)
    return Number(first + within % height), Number(within // height)


def _reduced(block: Block, rest: tuple[Any, ...], options: dict[str, Any]) -> Block:
    axis = options.get("axis", rest[0] if rest else None)
    if axis is None:
        return Block((), block.dtype.name)
    place = operator.index(axis) % max(len(block.shape), 1)
    kept = (1,) if options.get("keep_dims") else ()
    return Block((*block.shape[:place], *kept, *block.shape[place + 1 :]), block.dtype.name)


def _elementwise(values: Sequence[Any]) -> Block:
    blocks = [value for value in values if isinstance(value, Block)]
    shape: tuple[int, ...] = ()
    for block in blocks:
        longer, shorter = sorted((shape, block.shape), key=len, reverse=True)
        padded = (1,) * (len(longer) - len(shorter)) + tuple(shorter)
        shape = tuple(max(a, b) for a, b in zip(longer, padded, strict=True))
    return Block(shape, blocks[0].dtype.name if blocks else "")


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


_TYPES = {
    **{
        name: name for name in ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
    },
    **{"uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "int1": "bool", "float8e5": "float8_e5m2"},
    **{"float8e4nv": "float8_e4m3fn", "float8e4b15": "float8_e4m3fn", "float8e4b8": "float8_e4m3fn"},
}


def _used(function: Callable[..., Any]) -> set[str]:
    return set(function.__code__.co_names)


def _is_of_language(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").partition(".")[0] == "triton"


def _later(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    return lambda *args, **options: make()(*args, **options)


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _add_arithmetic() -> None:
    """Give numbers and blocks the operators that a kernel uses."""

    def of_numbers(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def forward(self: Number, other: Any) -> Any:
            if isinstance(other, Block):
                return _elementwise((other,))
            result = function(int(self), other)
            return Number(result) if type(result) is int else result

        def backward(self: Number, other: Any) -> Any:
            result = function(other, int(self))
            return Number(result) if type(result) is int else result

        return forward, backward

    def of_blocks(self: Block, *others: Any) -> Block:
        return _elementwise((self, *others))

    names = ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift", "truediv", "pow")
    for name in names:
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
        forward, backward = of_numbers(function)
        setattr(Number, f"__{name}__", forward)
        setattr(Number, f"__r{name}__", backward)
        setattr(Block, f"__{name}__", of_blocks)
        setattr(Block, f"__r{name}__", of_blocks)
    for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "invert"):
        setattr(Block, f"__{name}__", of_blocks)


_add_arithmetic()
