"""Flat buffers: where a rank's parameters lie in buffers that ranks share out among themselves.

ZeRO, distributed optimizers and FSDP1 lay parameters end to end in one long tensor and cut it into equal shards, one
per rank. A shard's ends fall wherever they fall, so ranks hold different pieces of different parameters. This module
reads the layouts once, after the first step; `shards.py` computes the pieces of every rank from them. Frameworks that
reduce gradients bucket by bucket report which parameters each bucket held: what a rank does with a bucket depends on
how much of it is its own. Parameters that are cut each for itself, along a dim, are read with them (`chunked_dims.py`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from sandtable.trace import FlatBuffer, Group, ReducedBucket
from sandtable.vgpu.chunked_dims import ChunkedDim, read_chunked_dims

if TYPE_CHECKING:
    from torch.nn import Parameter

__all__ = ["FlatBufferReader", "read_flat_buffers"]

Part = tuple[int, int, tuple[str, ...]]
Place = tuple[int, int]
"""A storage, and a place in it."""


class FlatBufferReader:
    """Reads the flat buffers of this process once, after the first step, and notes the reductions until then."""

    def __init__(self, groups: Sequence[Group] = ()) -> None:
        self.buffers: tuple[FlatBuffer, ...] = ()
        self.chunked_dims: tuple[ChunkedDim, ...] = ()
        self._groups = groups
        self.buckets: tuple[ReducedBucket, ...] = ()
        self._is_read = False
        self._reductions: list[tuple[bool, list[Place]]] = []
        self._noted: list[ref[Parameter]] = []

    def note_parameters(self) -> None:
        """Note the parameters of a model that was built before the garbage collector forgets all objects."""
        self._noted = [ref(parameter) for parameter in _visible_parameters()]

    def note_reduction(self, parameters: Iterable[Parameter], is_in_backward: bool) -> None:
        """Note that the gradients of these parameters, in this order, are reduced together."""
        if not self._is_read:
            self._reductions.append((is_in_backward, [_place(parameter) for parameter in parameters]))

    def read(self) -> None:
        """Read the buffers, if they have not been read."""
        if self._is_read:
            return
        self._is_read = True
        noted = [parameter for parameter in (noted() for noted in self._noted) if parameter is not None]
        self._noted.clear()
        parameters = [*noted, *_visible_parameters()]
        self.chunked_dims = read_chunked_dims(parameters, self._groups)
        found = sorted(read_flat_buffers(parameters), key=lambda item: (item[1].num_elements, item[1].parts))
        self.buffers = tuple(buffer for _, buffer in found)
        places = {
            (storage, start): (number, part)
            for number, (storage, buffer) in enumerate(found)
            for part, (start, _, _) in enumerate(buffer.parts)
        }
        self.buckets = tuple(
            ReducedBucket(
                is_in_backward=is_in_backward, parameters=tuple(places[place] for place in members if place in places)
            )
            for is_in_backward, members in self._reductions
        )
        self._reductions.clear()


def read_flat_buffers(parameters: Sequence[Parameter]) -> list[tuple[int, FlatBuffer]]:
    """Return the layouts of all flat buffers that these parameters lie in, each with its storage."""
    fsdp = sys.modules.get("torch.distributed.fsdp._flat_param")
    flat = [parameter for parameter in parameters if fsdp is not None and isinstance(parameter, fsdp.FlatParameter)]
    alone = [parameter for parameter in parameters if getattr(parameter, "ds_tensor", None) is not None]
    models = {id(model): model for p in parameters if (model := getattr(p, "_megatron_fsdp_model", None)) is not None}
    grouped = [group for model in models.values() for group in model.param_and_grad_buffer.parameter_groups]
    owned = [parameter for parameter in parameters if hasattr(parameter, "_megatron_fsdp_model")]
    sharded = {_storage(parameter) for parameter in (*flat, *alone, *owned)}
    cut = [parameter for parameter in flat if hasattr(parameter, "_padded_unsharded_size")]  # not with NO_SHARD
    units = [(_storage(parameter), _unit(parameter)) for parameter in cut]
    units += [(_storage(parameter), _zero_parameter(parameter)) for parameter in alone]
    units += [(_storage(group.params[0]), unit) for group in grouped for unit in _megatron_units(group)]
    return [*units, *_shared_storages(p for p in parameters if _storage(p) not in sharded)]


def _visible_parameters() -> list[Parameter]:
    """Return the parameters that the garbage collector shows."""
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.nn import Parameter

    # By type: `isinstance` asks an object for its class, and proxies of objects that are gone raise.
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    tensors = (tensor for tensor in tensors if not issubclass(type(tensor), FakeTensor))  # the compiler's
    return [tensor for tensor in tensors if isinstance(tensor, Parameter)]


def _unit(flat: Any) -> FlatBuffer:
    """Return the layout of a unit of FSDP1, which keeps it in the flat parameter."""
    parts: list[Part] = []
    start, shapes, originals = 0, iter(flat._shapes), iter(flat._params or [None] * len(flat._shapes))
    for size, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            parts.append((start, size, _flags(len(next(shapes)), next(originals))))
        start += size
    return FlatBuffer(num_elements=flat._padded_unsharded_size.numel(), parts=tuple(parts))


def _zero_parameter(parameter: Any) -> FlatBuffer:
    """Return the layout of a parameter of DeepSpeed's ZeRO-3, which cuts each on its own."""
    num_shards = int(parameter.ds_zero_partition_world_size)
    part = (0, int(parameter.ds_numel), _flags(len(parameter.ds_shape), parameter))
    size = int(parameter.ds_tensor.ds_numel)
    return FlatBuffer(num_elements=size * num_shards, parts=(part,), num_shards=num_shards)


def _megatron_units(group: Any) -> Iterator[FlatBuffer]:
    """Yield the layout of a group of parameters that Megatron-FSDP keeps in one bucket, if it is cut."""
    buffers = (getattr(group, f"{name}_buffer", None) for name in ("main_weight", "model_weight", "main_grad"))
    cut = next((buffer for buffer in buffers if buffer is not None and buffer.is_data_distributed), None)
    if cut is None:
        return
    items = sorted(cut.bucket_index.items, key=lambda item: item.global_data_index)
    parts = [(item.global_data_index, item.size, _flags(len(item.shape), group.params[item.item_id])) for item in items]
    yield FlatBuffer(num_elements=cut.bucket_index.size, parts=tuple(parts), num_shards=cut.dp_world_size)


def _shared_storages(parameters: Iterable[Parameter]) -> Iterator[tuple[int, FlatBuffer]]:
    """Yield storages that several parameters are views of, with their layouts."""
    parts: dict[int, set[Part]] = {}
    num_elements: dict[int, int] = {}
    for parameter in parameters:
        if not parameter.is_cuda or not parameter.is_contiguous():
            continue
        storage = _storage(parameter)
        flags = _flags(parameter.dim(), parameter)
        parts.setdefault(storage, set()).add((int(parameter.storage_offset()), parameter.numel(), flags))
        num_elements[storage] = parameter.untyped_storage().nbytes() // parameter.element_size()
    for storage, views in parts.items():
        if len(views) > 1:
            yield storage, FlatBuffer(num_elements=num_elements[storage], parts=tuple(sorted(views)))


def _flags(num_dims: int, parameter: Parameter | None) -> tuple[str, ...]:
    """Return what optimizers distinguish parameters by: being a vector, and what frameworks have marked them with."""
    marks = [] if parameter is None else [name for name, value in vars(parameter).items() if value is True]
    return tuple(sorted([*marks, "vector"] if num_dims <= 1 else marks))


def _place(parameter: Parameter) -> Place:
    return _storage(parameter), int(parameter.storage_offset())


def _storage(parameter: Parameter) -> int:
    address: int = parameter.untyped_storage()._cdata
    return address
