"""Parameters: their names, who holds them, and identities of them and their gradients at each update."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from sandtable.trace import EventKind, GradientScale, Group, HeldParameters, Line, Snapshot, WatchedParameter
from sandtable.vgpu.observing.events import EventLog, after, safely
from sandtable.vgpu.observing.gradients import GradientLog

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

__all__ = ["ParameterWatcher"]

_MOST_SNAPSHOTS = 20
_MOST_FOLLOWED = 16
"""Updates after the captured steps by which replicas that drifted apart must have been averaged."""

_MOST_SCALES = 200
_MOST_PARAMETERS = 20_000
_MOST_CLIPS = 2
_MOST_UPDATES = 8
"""Updates at which is noted whose gradients they use; what goes wrong does so from the start."""
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of names that wrappers put in."""


class ParameterWatcher:
    """Watches the optimizers of this process, and the parameters of all modules from the first update on."""

    def __init__(self, log: EventLog, groups: Sequence[Group]) -> None:
        self.parameters: tuple[WatchedParameter, ...] = ()
        self.snapshots: list[Snapshot] = []
        self.scales: list[GradientScale] = []
        self.followed: list[Snapshot] = []
        """Those of parameters that may have drifted apart, taken after the captured steps."""
        self._is_following = False
        self._log = log
        self._groups = groups
        self._tensors: list[ref[Tensor]] = []
        self._places: dict[int, int] = {}
        self._optimizers: list[ref[Any]] = []
        self._held: dict[int, HeldParameters] = {}
        self._num_updates = 0
        self._is_read = False
        self._is_by_hand = False
        self._num_clips = 0
        self._updated: list[int] = []
        """Identities of the parameters right after the last update."""
        self._local: tuple[list[int], list[int]] | None = None
        """Identities of the gradients that the last backward pass left, before the script reduced them."""
        self.gradients = GradientLog(self._living)
        self._found: dict[int, dict[str, Any]] = {}

    def install(self) -> None:
        """Watch optimizers that are made from now on, and their steps."""
        from torch.nn import Module
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        after(Optimizer, "__init__", self._on_optimizer)
        after(Optimizer, "zero_grad", lambda *args, **options: self.gradients.after_clearing())
        after(Module, "zero_grad", lambda *args, **options: self.gradients.after_clearing())
        register_optimizer_step_pre_hook(safely(self._before_step))
        register_optimizer_step_post_hook(safely(self._after_step))

    @property
    def optimizers(self) -> tuple[HeldParameters, ...]:
        """What each optimizer held when it last stepped, or at the end."""
        for made in self._optimizers:
            optimizer = made()
            if optimizer is not None and self._log.number_of("optimizer", optimizer) not in self._held:
                self._note_held(optimizer)
        return tuple(self._held[number] for number in sorted(self._held))

    def index_of(self, tensor: Any) -> int:
        """Return the number of a watched parameter, or -1."""
        return self._places.get(id(tensor), -1)

    def read(self) -> None:
        """Read the parameters of all modules that exist, if they have not been read."""
        if self._is_read:
            return
        self._is_read = True
        watched: list[WatchedParameter] = []
        tensors: list[ref[Tensor]] = []
        for root, module in enumerate(_outermost_modules()):
            for name, holder, tensor, is_buffer in _named_tensors(module):
                if id(tensor) in self._places or len(watched) >= _MOST_PARAMETERS:
                    continue
                self._places[id(tensor)] = len(watched)
                made, written = self._log.core.places_of([_local(tensor)])[0]
                places = Line(*made), Line(*written)
                watched.append(_watched(name, root, holder, tensor, is_buffer, places))
                tensors.append(ref(tensor))
        self.parameters, self._tensors = tuple(watched), tensors
        self._take("parameters", self._living())

    def begin_backward(self) -> None:
        """Look at the parameters that the script has updated itself, where it has no optimizer."""
        if self._is_by_hand and self._is_read:
            self._num_updates += 1
            self.take_parameters()

    def end_backward(self) -> None:
        """Look at the gradients before anything else becomes of them."""
        if self._is_read and self._num_updates < _MOST_UPDATES and not self._log.core.is_compiling():
            gradients = [None if tensor is None else _local(tensor.grad) for tensor in self._living()]
            self._local = self._log.core.identities_of(gradients)
        if not self._optimizers and not self._log.core.is_compiling():
            self._is_by_hand = True
            self.read()
            gradients = [None if tensor is None else tensor.grad for tensor in self._living()]
            self._take("gradients", gradients)
            self._take_scales(gradients)

    def follow(self) -> bool:
        """Note from now on only when replicas become one again; return whether they may have drifted apart."""
        self._is_following = True
        last = max((scale.step for scale in self.scales), default=0)
        own = {
            number for scale in self.scales if scale.step == last and not scale.groups for number in scale.parameters
        }
        return any(not self.parameters[number].is_sharded for number in own)

    def take_last(self) -> None:
        """Take the identities of all parameters when the script has ended."""
        if self._is_read and self._num_updates:
            self._take("before", self._living(), is_last=True)

    def take_parameters(self) -> None:
        """Take the identities of all parameters after an update."""
        self.read()
        self._take("parameters", self._living())

    def note_clip(self) -> None:
        """Take the identities of all gradients before they are clipped."""
        self.read()
        if self._num_clips < _MOST_CLIPS:
            self._num_clips += 1
            self._take("gradients before clipping", [None if each is None else each.grad for each in self._living()])

    def _on_optimizer(self, result: None, optimizer: Any, *args: Any, **options: Any) -> None:
        self._optimizers.append(ref(optimizer))
        self._log.note(
            EventKind.OPTIMIZER_MADE,
            subject=self._log.number_of("optimizer", optimizer),
            name=type(optimizer).__name__,
        )

    def _before_step(self, optimizer: Any, args: Any, options: Any) -> None:
        if self._log.core.is_compiling():
            return
        if self._is_following:
            self._take_followed()
            return
        self.read()
        self._note_held(optimizer)
        number = self._log.number_of("optimizer", optimizer)
        found = self.gradients.before_update(self._held[number].parameters)
        found["rates"] = [rate for group in optimizer.param_groups if isinstance(rate := group.get("lr"), float)]
        if self._num_updates < _MOST_UPDATES:
            found["unheld"] = self._unheld()
            found["foreign"], found["idle_foreign"] = self._foreign(optimizer)
            found["unrecorded"] = self._unrecorded(self._held[number].parameters)
        self._found[number] = self._log.note(EventKind.OPTIMIZER_STEP, subject=number, **found)
        tensors = self._living()
        if self._num_updates:
            self._take("before", tensors)
            self._note_changes(tensors)
            self._take_scales(tensors, of="parameters")
            self._take_local()
        gradients = [None if tensor is None else tensor.grad for tensor in tensors]
        self._take("gradients", gradients)
        self._take_scales(gradients)

    def _take_scales(self, tensors: Sequence[Any], *, of: str = "gradients") -> None:
        """Note over which groups the gradients were summed, and what they were multiplied by.

        Of parameters, only of those that were summed.
        """
        if len(self.scales) >= _MOST_SCALES:
            return
        alike: dict[tuple[tuple[float, int, int], tuple[str, int]], list[int]] = {}
        local = [_local(tensor) for tensor in tensors]
        scales, places = self._log.core.scales_of(local), self._log.core.places_of(local)
        for number, (scale, (_, written)) in enumerate(zip(scales, places, strict=True)):
            if tensors[number] is not None and (of == "gradients" or scale[1]):
                alike.setdefault((scale, written), []).append(number)
        for ((factor, summed_over, summed_again), written), parameters in alike.items():
            self.scales.append(
                GradientScale(
                    row=self._log.core.num_rows(),
                    step=self._num_updates,
                    place=self._log.place(),
                    parameters=tuple(parameters),
                    factor=factor,
                    groups=self._members(summed_over),
                    groups_again=self._members(summed_again),
                    of=of,
                    written=Line(*written),
                )
            )

    def _note_changes(self, tensors: Sequence[Any]) -> None:
        """Note where parameters were written since the last update."""
        now = self._log.core.identities_of([_local(tensor) for tensor in tensors])[0]
        before, self._updated = self._updated, []
        changed = [index for index, (old, new) in enumerate(zip(before, now, strict=False)) if old != new]
        changed = [index for index in changed if not self.parameters[index].is_buffer]
        places: dict[Line, list[int]] = {}
        for index, (_, written) in zip(
            changed, self._log.core.places_of([_local(tensors[index]) for index in changed]), strict=True
        ):
            places.setdefault(Line(*written), []).append(index)
        for place, parameters in places.items():
            self._log.note(EventKind.CHANGED, at=place, parameters=parameters)

    def _take_local(self) -> None:
        if self._local is not None and len(self.snapshots) < _MOST_SNAPSHOTS:
            self.snapshots.append(self._snapshot("local gradients", self._local))
        self._local = None

    def _unrecorded(self, held: Sequence[int]) -> list[tuple[int, str, int]]:
        """Return the held parameters that want a gradient and have none, and where no_grad hid them from autograd."""
        tensors = self._living()
        without = [
            index
            for index in held
            if index >= 0 and (tensor := tensors[index]) is not None and tensor.requires_grad and tensor.grad is None
        ]
        places = self._log.core.unrecorded_places_of([_local(tensors[index]) for index in without])
        return [(index, file, line) for index, (file, line, *_) in zip(without, places, strict=True)]

    def _members(self, mask: int) -> tuple[tuple[int, ...], ...]:
        return tuple(group.ranks for number, group in enumerate(self._groups) if mask >> number & 1)

    def _after_step(self, optimizer: Any, args: Any, options: Any) -> None:
        self._num_updates += 1
        if self._num_updates <= _MOST_UPDATES and not self._log.core.is_compiling():
            self._updated = self._log.core.identities_of([_local(tensor) for tensor in self._living()])[0]
        number = self._log.number_of("optimizer", optimizer)
        if number in self._found:
            self.gradients.after_update(self._held[number].parameters, self._found.pop(number))

    def has_optimizer(self) -> bool:
        """Return whether an optimizer has been made."""
        return bool(self._optimizers)

    def holders_of(self, tensors: Sequence[Any]) -> list[int]:
        """Return the optimizers that hold one of these tensors."""
        wanted = set(map(id, tensors))
        return [
            self._log.number_of("optimizer", optimizer)
            for optimizer in filter(None, (made() for made in self._optimizers))
            if any(id(tensor) in wanted for group in optimizer.param_groups for tensor in group["params"])
        ]

    def _unheld(self) -> list[int]:
        """Return the watched parameters that have a gradient, and that no optimizer holds."""
        held = {
            id(tensor)
            for optimizer in filter(None, (made() for made in self._optimizers))
            for group in optimizer.param_groups
            for tensor in group["params"]
        }
        tensors = self._living()
        return [index for index in self.gradients.with_gradients() if id(tensors[index]) not in held]

    def _foreign(self, optimizer: Any) -> tuple[int, int]:
        """Return how many tensors the optimizer holds that no module has, and how many of them have no gradient."""
        foreign = [
            tensor
            for group in optimizer.param_groups
            for tensor in group["params"]
            if self.index_of(tensor) < 0 and tensor.is_leaf
        ]
        return len(foreign), sum(tensor.grad is None for tensor in foreign)

    def _note_held(self, optimizer: Any) -> None:
        number = self._log.number_of("optimizer", optimizer)
        held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        self._held[number] = HeldParameters(
            optimizer=number,
            name=type(optimizer).__name__,
            parameters=tuple(map(self.index_of, held)),
            num_elements=tuple(int(tensor.numel()) for tensor in held),
        )

    def _take_followed(self) -> None:
        if len(self.followed) < _MOST_FOLLOWED:
            self.followed.append(self._snapshot("before", self._identities(self._living())))
        else:
            self._log.core.follow_identities(False)

    def _living(self) -> list[Any]:
        return [tensor() for tensor in self._tensors]

    def _take(self, of: str, tensors: Sequence[Any], *, is_last: bool = False) -> None:
        if len(self.snapshots) >= _MOST_SNAPSHOTS and not is_last:
            return
        self.snapshots.append(self._snapshot(of, self._identities(tensors)))

    def _identities(self, tensors: Sequence[Any]) -> tuple[Sequence[int], Sequence[int]]:
        identities, outlines = self._log.core.identities_of([_local(tensor) for tensor in tensors])
        return identities, outlines

    def _snapshot(self, of: str, numbers: tuple[Sequence[int], Sequence[int]]) -> Snapshot:
        identities, outlines = numbers
        return Snapshot(
            of=of,
            row=self._log.core.num_rows(),
            step=self._num_updates,
            place=self._log.place(),
            identities=tuple(identities),
            outlines=tuple(outlines),
        )


def _outermost_modules() -> list[Module]:
    """Return the modules that no other module holds, oldest first."""
    from torch.nn import Module

    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), Module)]
    children = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in modules if id(module) not in children and "_parameters" in module.__dict__]


def _named_tensors(module: Module) -> Iterator[tuple[str, Module, Tensor, bool]]:
    """Yield name, holder, tensor and whether it is a buffer, of all tensors of a module."""
    for path, holder in module.named_modules():
        for tensors, is_buffer in ((holder._parameters, False), (holder._buffers, True)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    yield _short(f"{path}.{name}" if path else name), holder, tensor, is_buffer


def _short(name: str) -> str:
    """Return the name without what wrappers put into it, so that it is the same before and after wrapping."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _watched(
    name: str, root: int, holder: Module, tensor: Any, is_buffer: bool, places: tuple[Line, Line]
) -> WatchedParameter:
    return WatchedParameter(
        name=name,
        root=root,
        module=type(holder).__name__,
        shape=tuple(int(size) for size in tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        requires_grad=bool(tensor.requires_grad),
        is_sharded=_is_sharded(tensor),
        is_buffer=is_buffer,
        place=places[0],
        written=places[1],
    )


def _is_sharded(tensor: Any) -> bool:
    placements: Iterable[Any] = getattr(tensor, "placements", ())
    marks = ("ds_tensor", "_is_flat_param", "_megatron_fsdp_model")
    return any(not placement.is_replicate() for placement in placements) or any(hasattr(tensor, mark) for mark in marks)


def _local(tensor: Any) -> Any:
    """Return the tensor that holds the numbers; None if there is none, or if it is more than one."""
    if tensor is None or (hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "_local_tensor")):
        return None
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor if not tensor.is_meta and tensor.layout.__str__() == "torch.strided" else None
