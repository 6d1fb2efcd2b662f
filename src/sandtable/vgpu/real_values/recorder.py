"""The recorder: saves losses, gradients and parameters of each update; with a guide it sets them first."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from sandtable.trace.guide import Guide
from sandtable.trace.real_values import RankValues
from sandtable.vgpu.real_values.dropout import leave_nothing_out
from sandtable.vgpu.real_values.host_kernels import add_host_kernels
from sandtable.vgpu.real_values.inputs import InputFollower
from sandtable.vgpu.real_values.parameters import OwnedTensor, local, owned_tensors, root_modules
from sandtable.vgpu.real_values.settings import ValueSettings

__all__ = ["ValueRecorder"]

Array = npt.NDArray[Any]
_MAX_BYTES = 128 << 20
_HALF = ("float16", "float8")


class ValueRecorder:
    """Has the core compute all values of this process, and notes those that training is about."""

    def __init__(self, core: ModuleType, settings: ValueSettings) -> None:
        self._core = core
        self._settings = settings
        self._guide = Guide.load(settings.guide) if settings.guide else Guide()
        self._inputs = InputFollower(core, self._guide)
        self._optimizers: list[Any] = []
        self._num_steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._owned: list[OwnedTensor] = []
        self._values: dict[tuple[int, str], Array] = {}
        self._gradients: dict[tuple[int, str], Array] = {}
        self._unclipped: dict[str, Array] = {}
        self._unclipped_gradients: dict[tuple[int, str], Array] = {}
        self._raw: dict[str, Array] = {}
        self._raw_gradients: dict[tuple[int, str], Array] = {}
        self._losses: dict[int, list[float]] = defaultdict(list)
        self._num_backwards = 0
        self._backwards: dict[tuple[int, str], int] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._updates: dict[int, int] = {}
        self._is_begun = False
        self._set: set[tuple[int, str]] = set()

    def install(self) -> None:
        """Watch copies, draws, optimizers and modules from now on."""
        from torch.nn import Module
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._core.keep_real_values(self._inputs)
        _run_uncompiled()
        add_host_kernels()
        if not self._settings.has_dropout:
            leave_nothing_out()
        Module._apply = self._aside(Module._apply)  # type: ignore[method-assign]
        Module.load_state_dict = self._aside(Module.load_state_dict)  # type: ignore[method-assign]
        Optimizer.__init__ = self._admitting(Optimizer.__init__)  # type: ignore[method-assign]
        self._notice_clipping()
        register_module_forward_pre_hook(lambda module, inputs: self._begin_update())
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def begin_backward(self, roots: Sequence[Any]) -> None:
        """Note the losses that a backward pass begins at."""
        import torch

        with self._quietly():
            for root in roots:
                if isinstance(root, torch.Tensor) and root.numel() == 1 and self._is_known(local(root)):
                    self._losses[self._inputs.update].append(float(local(root.detach())))

    def end_backward(self) -> None:
        """Note the gradients that a backward pass has left, or set those of the guide."""
        self._num_backwards += 1
        with self._quietly():
            self._read_parameters()
            for owned in self._owned:
                gradient = owned.gradient
                if gradient is None:
                    continue
                key = (self._update_of(owned), owned.piece.name)
                if self._guide.backwards.get(key) == self._num_backwards:
                    _write(owned, gradient, self._guide.gradients[key])
                if self._is_known(gradient):
                    self._raw[owned.piece.name] = _array(gradient)
        self._places.setdefault("backward", self._place())

    def finish(self, rank: int, groups: Sequence[tuple[int, ...]]) -> None:
        """Write the file of this rank."""
        update = self._inputs.update
        with self._quietly():
            self._note_values()
            self._inputs.forget_copies_to({owned.value.data_ptr() for owned in self._owned})
        RankValues(
            rank=rank,
            num_updates=update,
            pieces=tuple(owned.piece for owned in self._owned),
            groups=tuple(groups),
            values=self._values,
            gradients=self._gradients,
            unclipped_gradients=self._unclipped_gradients,
            raw_gradients=self._raw_gradients,
            backwards=self._backwards,
            losses=tuple(tuple(self._losses[number]) for number in range(update)),
            copies=tuple(self._inputs.copies),
            draws=tuple(self._inputs.draws),
            unknown=tuple((name, (file, line)) for name, (file, line, _) in self._core.unknown_results()),
            is_half=any(name in text for text in self._core.signatures() for name in _HALF),
            places=self._places,
        ).save(self._settings.path(rank))

    # ---- updates ----

    def _before_step(self, optimizer: Any, args: Any, options: Any) -> None:
        update = self._num_steps.get(optimizer, 0)
        self._begin_update()
        held = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        with self._quietly():
            self._read_parameters()
            for owned in self._owned:
                name, gradient = owned.piece.name, owned.gradient
                if id(owned.tensor) not in held or gradient is None:
                    continue
                if self._is_known(gradient):
                    self._gradients[update, name] = _array(gradient)
                if name in self._raw:
                    self._raw_gradients[update, name] = self._raw.pop(name)
                    self._backwards[update, name] = self._num_backwards
                if name in self._unclipped:
                    self._unclipped_gradients[update, name] = self._unclipped.pop(name)
        self._places.setdefault("step", self._place())

    def _after_step(self, optimizer: Any, args: Any, options: Any) -> None:
        self._num_steps[optimizer] = self._num_steps.get(optimizer, 0) + 1
        self._inputs.update = min(
            (self._num_steps[one] for one in self._optimizers if one in self._num_steps), default=0
        )
        self._is_begun = False
        if not root_modules():  # no module's forward pass will begin the next update
            self._begin_update()

    def _begin_update(self) -> None:
        """Note the parameters when the first module runs after an update, and set those of the guide.

        Until then the script may still change them: clamp them, or gather what other ranks have updated.
        """
        if self._is_begun or not self._optimizers or self._inputs.is_off:
            return
        self._is_begun = True
        with self._quietly():
            self._note_values()
            for owned in self._owned:
                key = (self._update_of(owned), owned.piece.name)
                offered = self._guide.values.get(key)
                if offered is not None and key not in self._set:
                    self._set.add(key)
                    _write(owned, owned.value, offered)

    def _note_values(self) -> None:
        """Note the parameters before their next update, unless they have been noted."""
        self._read_parameters()
        _require_small(self._owned)
        for owned in self._owned:
            key = (self._update_of(owned), owned.piece.name)
            value = owned.value
            if key not in self._values and self._is_known(value):
                self._values[key] = _array(value)

    def _update_of(self, owned: OwnedTensor) -> int:
        return self._updates.get(id(owned.tensor), self._inputs.update)

    def _read_parameters(self) -> None:
        self._owned = owned_tensors(self._optimizers)
        self._updates = {
            id(tensor): self._num_steps.get(optimizer, 0)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for tensor in group["params"]
        }

    # ---- what is watched ----

    def _admitting(self, original: Any) -> Any:
        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **options: Any) -> None:
            original(optimizer, *args, **options)
            self._optimizers.append(optimizer)
            self._inputs.is_setup = False
            if not root_modules():
                self._begin_update()

        return init

    def _aside(self, original: Any) -> Any:
        """Return the function, whose copies are not a batch's."""

        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            with self._quietly():
                return original(*args, **options)

        return call

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        self._inputs.is_off += 1
        try:
            yield
        finally:
            self._inputs.is_off -= 1

    def _notice_clipping(self) -> None:
        """Note the gradients before they are clipped, which hides a factor that all have."""
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel

        name = "clip_grad_norm_"
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad, FullyShardedDataParallel):
            setattr(owner, name, self._before_clipping(getattr(owner, name)))

    def _before_clipping(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip(*args: Any, **options: Any) -> Any:
            with self._quietly():
                self._read_parameters()
                for owned in self._owned:
                    gradient = owned.gradient
                    if gradient is not None and owned.piece.name not in self._unclipped and self._is_known(gradient):
                        self._unclipped[owned.piece.name] = _array(gradient)
            return original(*args, **options)

        return clip

    def _is_known(self, tensor: Any) -> bool:
        return bool(self._core.has_exact_value(tensor))

    def _place(self) -> tuple[str, int]:
        file, line, _ = self._core.current_place()
        return str(file), int(line)


def _require_small(owned: Sequence[OwnedTensor]) -> None:
    num_bytes = sum(int(one.value.nbytes) for one in owned)
    if num_bytes > _MAX_BYTES:
        raise RuntimeError(
            f"parity computes on the CPU, so a rank must hold at most {_MAX_BYTES >> 20} MiB of parameters, but this "
            f"one holds {num_bytes >> 20} MiB; make the model smaller with --shrink"
        )


def _array(tensor: Any) -> Array:
    """Return the numbers, in single precision where they had less."""
    import torch

    host = tensor.detach().cpu()
    array: Array = (host if host.dtype in (torch.float32, torch.float64) else host.float()).numpy()
    return array.copy()


def _write(owned: OwnedTensor, target: Any, whole: Array) -> None:
    """Write the part of the whole parameter that this process holds."""
    import torch

    piece = owned.piece
    part = whole
    if piece.start >= 0:
        part = whole.reshape(-1)[piece.start : piece.start + target.numel()]
    elif piece.offset:
        part = whole[
            tuple(slice(begin, begin + size) for begin, size in zip(piece.offset, piece.local_shape, strict=True))
        ]
    if part.size != target.numel():
        return
    with torch.no_grad():
        target.copy_(torch.from_numpy(np.ascontiguousarray(part).reshape(tuple(target.shape))))


def _run_uncompiled() -> None:
    """Have `torch.compile` leave functions as they are: what it makes of them has no kernels on the host."""
    import torch
    from torch.nn import Module

    def leave(model: Any = None, **options: Any) -> Any:
        return (lambda function: function) if model is None else model

    torch.compile = leave
    Module.compile = lambda self, *args, **options: None  # type: ignore[method-assign]
