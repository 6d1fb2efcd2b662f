"""Sharded data parallel (ZeRO, FSDP2) with compressed exchange.

Where every rank keeps only its part of the weights, a step gathers weights from all ranks (all-gather) and scatters
gradients to their owners (reduce-scatter). torch's `fully_shard` lets both be replaced; here they use codecs:

    fully_shard(model)
    sharded = compress_sharded(model, gradients=QSGD(4), weights=Half("bfloat16", error_feedback=False))

Gradients: each rank writes one message per other rank, with that rank's part of its gradient, and one all-to-all
exchanges them; the owner adds them to its own part, which needs no message. Any compression with messages works. Error
feedback keeps the residual of the whole gradient on every rank; `error_feedback=False` saves that memory.

Weights: every rank writes one message with its part and all ranks read it, the writer included, so that all compute
with the same weights; the owner's own stay exact. Weights are not increments: no later message makes up for what one
leaves out. So the compression must send all components and have no error feedback; to round alike in forward and
backward, use rounding="nearest" with QSGD. (Markov et al., QSDP, 2023, arXiv:2302.02390.)

For a part of n components on P ranks, each rank sends (P - 1) * message_bytes(n) bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from sandtable.methods.data.compression.compression import Codec, Compression, require
from sandtable.methods.data.compression.none import NoCompression
from sandtable.methods.transport.single_tensors import all_gather_single

__all__ = ["Sharded", "compress_sharded"]


def compress_sharded(
    model: nn.Module,
    *,
    gradients: Compression | None = None,
    weights: Compression | None = None,
    seed: int = 0,
) -> Sharded:
    """Compress what `fully_shard` sends, in all modules of `model` it was applied to; None leaves it to torch."""
    modules = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    require(
        bool(modules), f"the model must be sharded first, but {type(model).__name__} is not; call fully_shard(model)"
    )
    if gradients is not None:
        gradients.codec(1, torch.float32)  # refuses what has no messages
    if weights is not None:
        _check_weights(weights)
    parts = {}
    for number, (name, module) in enumerate(modules.items()):
        part = _Part(gradients, weights, seed + (number << 40))
        if gradients is not None:
            module.set_custom_reduce_scatter(part.reduce_scatter)
            # A parameter without a gradient counts as zeros, so that the codec's vector keeps its size.
            module.set_reduce_scatter_unused_params(True, recurse=False)
        if weights is not None:
            module.set_custom_all_gather(part.all_gather)
        parts[name] = part
    return Sharded(parts)


class Sharded:
    """The state of a compressed sharded model: codecs by module, and the bytes they sent from this rank."""

    def __init__(self, parts: dict[str, _Part]) -> None:
        self._parts = parts

    @property
    def sent_bytes(self) -> int:
        """Bytes of gradients and weights sent so far."""
        return sum(part.reduce_scatter.sent_bytes + part.all_gather.sent_bytes for part in self._parts.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals and counts of this rank, by module."""
        return {
            name: {"gradients": part.reduce_scatter.state(), "weights": part.all_gather.state()}
            for name, part in self._parts.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state_dict()`, with the same number of ranks."""
        require(
            set(state) == set(self._parts),
            f"the saved state must have the modules {sorted(self._parts)}, but it has {sorted(state)}",
        )
        for name, part in self._parts.items():
            part.reduce_scatter.load(state[name]["gradients"])
            part.all_gather.load(state[name]["weights"])


class _Part:
    """The two exchanges of one module."""

    def __init__(self, gradients: Compression | None, weights: Compression | None, seed: int) -> None:
        self.reduce_scatter = _CompressedReduceScatter(gradients or NoCompression(), seed)
        self.all_gather = _CompressedAllGather(weights or NoCompression(), seed)


class _Exchange:
    """Codecs, made at the first call, when sizes are known; a state loaded earlier waits for them."""

    def __init__(self, compression: Compression, seed: int) -> None:
        self.compression = compression
        self.seed = seed
        self.sent_bytes = 0
        self.codecs: list[Codec] = []
        self._waiting: list[dict[str, Any]] = []

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate an ordinary buffer."""
        return torch.empty(*size, dtype=dtype, device=device)

    def state(self) -> list[dict[str, Any]]:
        return [codec.state_dict() for codec in self.codecs] or self._waiting

    def load(self, state: list[dict[str, Any]]) -> None:
        if not self.codecs:
            self._waiting = state
            return
        require(
            len(state) == len(self.codecs),
            f"the saved state must have {len(self.codecs)} codecs, but it has {len(state)}; "
            "resume with the same number of ranks",
        )
        for codec, codec_state in zip(self.codecs, state, strict=True):
            codec.load_state_dict(codec_state)

    def make_codecs(self, count: int, part: Tensor, rank: int) -> None:
        """Make `count` codecs for tensors like `part`, each with its own seed."""
        if self.codecs and self.codecs[0].num_elements == part.numel() and self.codecs[0].dtype == part.dtype:
            return
        require(
            not self.codecs,
            f"a module's exchange must keep its size, but it changed to {part.numel()} components of {part.dtype}; "
            "call compress_sharded again after changing parameters or gradient dtypes",
        )
        first = self.seed + (rank << 20)
        self.codecs = [
            self.compression.codec(part.numel(), part.dtype, part.device, first + number) for number in range(count)
        ]
        if self._waiting:
            self.load(self._waiting)
            self._waiting = []


class _CompressedReduceScatter(_Exchange, ReduceScatter):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        world, rank = group.size(), group.rank()
        weight = _weight_of(op, world)
        parts = input_tensor.view(world, -1)
        self.make_codecs(world, parts[0], rank)
        nothing = torch.empty(0, dtype=torch.uint8, device=input_tensor.device)
        messages = [
            nothing if owner == rank else codec.encode(part)
            for owner, (codec, part) in enumerate(zip(self.codecs, parts, strict=True))
        ]
        self.sent_bytes += sum(message.numel() for message in messages)
        received = self._swap(messages, group)
        torch.mul(parts[rank], weight, out=output_tensor)
        for sender, message in enumerate(received):
            if sender != rank:
                self.codecs[sender].add(message, output_tensor, weight)
        return None

    def _swap(self, messages: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
        """Send message j to rank j and return the messages for this rank; send lengths first where they may differ."""
        lengths = torch.tensor([message.numel() for message in messages], dtype=torch.int64)
        if all(codec.fixed_bytes is not None for codec in self.codecs):
            their_lengths = lengths
        else:
            lengths = lengths.to(messages[0].device)
            their_lengths = torch.empty_like(lengths)
            dist.all_to_all_single(their_lengths, lengths, group=group)
        sizes, their_sizes = lengths.tolist(), their_lengths.tolist()
        received = torch.empty(sum(their_sizes), dtype=torch.uint8, device=messages[0].device)
        dist.all_to_all_single(received, torch.cat(messages), their_sizes, sizes, group=group)
        return list(torch.split(received, their_sizes))


class _CompressedAllGather(_Exchange, AllGather):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        require(
            input_tensor.is_floating_point(),
            "parameters that are gathered together must be of one floating dtype to be compressed, but they are "
            "mixed; apply fully_shard to modules of one dtype, or leave weights=None",
        )
        world, rank = group.size(), group.rank()
        self.make_codecs(1, input_tensor, rank)
        (codec,) = self.codecs
        message = codec.encode(input_tensor)
        self.sent_bytes += (world - 1) * message.numel()
        messages = torch.empty(world * message.numel(), dtype=torch.uint8, device=message.device)
        all_gather_single(messages, message, group=group)
        for part, part_message in zip(output_tensor.view(world, -1), messages.view(world, -1), strict=True):
            codec.decode(part_message, part)
        return None


def _weight_of(op: dist.ReduceOp | dist.ReduceOp.RedOpType, world: int) -> float:
    if op == dist.ReduceOp.AVG:
        return 1 / world
    require(
        op == dist.ReduceOp.SUM,
        f"gradients must be reduced by sum or mean to be compressed, but the operation is {op}; "
        "call model.set_force_sum_reduction_for_comms(True)",
    )
    return 1.0


def _check_weights(weights: Compression) -> None:
    codec = weights.codec(1, torch.float32)
    require(
        not weights.is_sparse and codec.fixed_bytes is not None,
        f"weights must be sent whole, but {weights} leaves components out; "
        'use weights=Half("bfloat16", error_feedback=False)',
    )
    require(
        not getattr(weights, "error_feedback", False),
        f"weights are not increments, so error feedback cannot make up for what {weights} leaves out; "
        "use error_feedback=False",
    )
