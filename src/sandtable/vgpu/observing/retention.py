"""Retention: what of the script holds more tensors from step to step, as a list of losses or a sum of them does.

Looks at the living objects of the process after a few updates: containers that have more tensors each time, and tensors
whose history reaches back over several steps, because each of them keeps the graph of a step alive.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import linecache
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from sandtable.trace import Line, TensorHolder
from sandtable.vgpu.failures import is_library

__all__ = ["RetentionWatcher", "names_in_script", "place_of"]

_FEWEST_STEPS = 3
"""Nothing is seen to grow in fewer."""

_LAST_STEP = 4
"""Scripts that keep something do so in every step."""

_MOST_ITEMS = 10_000
_MOST_NODES = 256
_OWN_REFERENCES = 3
"""The frame's, the variable's and the argument's."""
_MOST_OBJECTS = 300_000
_MOST_PARTS = 64
_DEPTH = 5
_CONTAINERS = (list, dict, deque)
_NOT_OF_SCRIPTS = frozenset({"torch", "builtins", "numpy", "collections", "sandtable"})
_ADDING = frozenset({"append", "appendleft", "extend", "add", "insert", "update", "setdefault"})


class RetentionWatcher:
    """Compares what is held after the first updates."""

    def __init__(self, *, num_steps: int) -> None:
        self._is_long = num_steps >= _FEWEST_STEPS
        self.holders: dict[str, TensorHolder] = {}
        self._ends: list[int] = []
        self._counts: list[dict[int, int]] = []
        self._names: dict[int, tuple[Any, str]] = {}

    def look(self, step: int) -> None:
        """Look at all containers and graphs after an update."""
        if not self._is_long or len(self._ends) >= _LAST_STEP:
            return
        containers: dict[int, tuple[Any, int]] = {}
        tensors = []
        self._names = names_in_script()
        # What the script made before its imports ended is not among the collector's objects.
        objects = gc.get_objects()
        reachable = [thing for thing, _ in self._names.values()]
        for thing in itertools.chain(objects if len(objects) <= _MOST_OBJECTS else (), reachable):
            kind = type(thing)
            if issubclass(kind, _CONTAINERS):
                count = _num_tensors(thing)
                if count:
                    containers[id(thing)] = thing, count
            elif _is_tensor(kind) and _history(thing) is not None:
                tensors.append(thing)
        if len(self._ends) >= 2:
            self._compare(containers)
            for tensor in tensors:
                if self._spans_steps(tensor):
                    self._add(tensor, "graph", 1)
        self._ends.append(_sequence_number())
        self._counts.append({key: count for key, (_, count) in containers.items()})
        self._names = {}  # what the script drops must be freed

    def _compare(self, containers: dict[int, tuple[Any, int]]) -> None:
        for key, (container, count) in containers.items():
            before = [counts.get(key, 0) for counts in self._counts[-2:]]
            if before[0] < before[1] < count and getattr(container, "maxlen", None) is None:
                self._add(container, type(container).__name__, count)

    def _spans_steps(self, tensor: Any) -> bool:
        """Return whether the tensor was computed from results of at least two earlier steps."""
        nodes, past = deque([_history(tensor)]), set()
        seen = {_history(tensor)}
        while nodes and len(seen) < _MOST_NODES:
            node = nodes.popleft()
            number = node._sequence_nr()
            window = sum(number >= end for end in self._ends)
            if window < len(self._ends):
                past.add(window)
            for following, _ in node.next_functions:
                if following is not None and following not in seen and "AccumulateGrad" not in following.name():
                    seen.add(following)
                    nodes.append(following)
        return len(past) >= 2

    def _add(self, thing: Any, kind: str, count: int) -> None:
        name = self._names[id(thing)][1] if id(thing) in self._names else _name_by_holder(thing)
        if name:
            place = place_of(name, _adds_to)
            is_on_stack = place.file in {frame.f_code.co_filename for frame in _script_frames()}
            if id(thing) not in self._names and not is_on_stack:
                return  # a library's own
            self.holders[name] = TensorHolder(
                name=name,
                kind=kind,
                num_tensors=count,
                has_graph=kind == "graph" or _has_graph(thing),
                place=place,
            )


def _history(tensor: Any) -> Any:
    """Return the function of autograd that made a tensor; None of a view that may not be asked."""
    try:
        return tensor.grad_fn
    except RuntimeError:  # its base was written in place: FSDP's views of its flat weights
        return None


def _is_tensor(kind: type) -> bool:
    tensor = sys.modules["torch"].Tensor
    return kind is tensor or (issubclass(kind, tensor) and kind.__name__ != "Parameter")


def _tensors_in(thing: Any) -> Iterator[Any]:
    """Yield the tensors of a container that take memory of the card or keep a graph, also those one level down."""
    for item in _items_of(thing):
        kind = type(item)
        if _is_tensor(kind):
            yield item
        elif kind is tuple or kind is dict:
            yield from (part for part in (item.values() if kind is dict else item) if _is_tensor(type(part)))


def _items_of(thing: Any) -> list[Any]:
    """Return what is in a container, whatever its class makes of that."""
    kind = type(thing)
    if issubclass(kind, dict):
        return list(dict.values(thing))
    base = list if issubclass(kind, list) else deque if issubclass(kind, deque) else tuple
    return list(base.__iter__(thing))


def _num_tensors(thing: Any) -> int:
    """Count the tensors of a container to which one was added last."""
    kind = type(thing)
    size = dict.__len__(thing) if issubclass(kind, dict) else len(thing)
    if not 0 < size <= _MOST_ITEMS:
        return 0
    last = next(reversed(dict.values(thing))) if issubclass(kind, dict) else thing[-1]
    if not issubclass(type(last), (tuple, dict)) and not _is_tensor(type(last)):
        return 0
    return sum(1 for tensor in _tensors_in(thing) if tensor.is_cuda or _history(tensor) is not None)


def _has_graph(thing: Any) -> bool:
    return any(_history(tensor) is not None for tensor in _tensors_in(thing))


def _sequence_number() -> int:
    """Return the number that the next function of autograd gets, about."""
    import torch

    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _script_frames() -> list[FrameType]:
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


def names_in_script() -> dict[int, tuple[Any, str]]:
    """Return the containers and tensors that the script's variables lead to, with the names of these, by id."""
    scopes: list[Mapping[str, Any]] = []
    for frame in _script_frames():
        scopes += [_locals_of(frame), frame.f_globals]
    found: dict[int, tuple[Any, str]] = {}
    seen: set[int] = set()
    level = [(value, name) for scope in scopes for name, value in list(scope.items())]
    for _ in range(_DEPTH):
        level = [(value, name) for value, name in level if id(value) not in seen and not isinstance(value, ModuleType)]
        seen.update(id(value) for value, _ in level)
        following: list[tuple[Any, str]] = []
        for value, name in level[:_MOST_ITEMS]:
            if issubclass(type(value), _CONTAINERS) or _is_tensor(type(value)):
                found[id(value)] = value, name
            following += _parts_of(value, name)
        level = following
    return found


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a function's variables, without the copy that Python before 3.13 would keep alive with the frame."""
    current = frame.f_locals
    names = dict(current)
    is_copy = type(current) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(current) <= _OWN_REFERENCES:  # else the script has called locals()
        current.clear()
    return names


def _parts_of(value: Any, name: str) -> list[tuple[Any, str]]:
    """Return what is inside a container, which has its name, or an object, whose attributes have their own."""
    if issubclass(type(value), (*_CONTAINERS, tuple)):
        return [(part, name) for part in _items_of(value)[:_MOST_PARTS]]
    own = getattr(value, "__dict__", None)
    is_own = type(value).__module__.partition(".")[0] not in _NOT_OF_SCRIPTS
    return [(part, key) for key, part in list(own.items())] if is_own and type(own) is dict else []


def _name_by_holder(thing: Any) -> str:
    """Return the name under which another object holds this one; "" if none does."""
    for holder in gc.get_referrers(thing):
        # The attributes of an object may be in no dictionary.
        names = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
        for name, value in list(names.items()) if isinstance(names, dict) else ():
            if value is thing and isinstance(name, str):
                return name
    return ""


def place_of(name: str, concerns: Callable[[ast.AST, str], bool]) -> Line:
    """Return the first line of the script's files, the running ones first, that concerns what has this name."""
    for file, names in _script_files().items():
        try:
            tree = ast.parse("".join(linecache.getlines(file, names)))
        except (SyntaxError, ValueError):
            continue
        numbers = [node.lineno for node in ast.walk(tree) if concerns(node, name)]  # type: ignore[attr-defined]
        if numbers:
            running = [number for number in numbers if _is_running(file, number)]
            return Line(file, (running or numbers)[0], "")
    return Line()


def _is_running(file: str, number: int) -> bool:
    """Return whether this line belongs to a function that has not returned."""
    codes = [frame.f_code for frame in _script_frames() if frame.f_code.co_filename == file]
    spans = [[line for _, _, line in code.co_lines() if line] for code in codes if code.co_name != "<module>"]
    return any(min(lines) <= number <= max(lines) for lines in spans if lines)


def _script_files() -> dict[str, dict[str, Any]]:
    """Return the files of the script with the variables of their modules: those on the stack, then what it imported."""
    files: dict[str, dict[str, Any]] = {frame.f_code.co_filename: frame.f_globals for frame in _script_frames()}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and file not in files and not is_library(file):
            files[file] = vars(module)
    return files


def _adds_to(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=holder, attr=method)):
            return method in _ADDING and _last_name(holder) == name
        case ast.AugAssign(target=target):
            return _last_name(target) == name
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
            names = [_last_name(target) for target in targets if not isinstance(target, ast.Starred)]
            return name in names and any(_last_name(part) == name for part in ast.walk(value))
        case ast.Assign(targets=[target], value=value):
            if isinstance(target, ast.Subscript):
                return _last_name(target.value) == name
            return _last_name(target) == name and any(_last_name(part) == name for part in ast.walk(value))
    return False


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last_name(value)
    return ""
