"""`deep_ep.Buffer`: dispatch and combine as exchanges of all with all.

A token goes once to each rank that holds one of its experts, whichever of them; ranks learn beforehand how many they
get, for which the host waits. The way back adds up what the ranks made of a token. Between nodes the package sends a
token once per node and copies it there over NVLink; here it crosses the network once per rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.vgpu.packages.deep_ep.events import EventOverlap

__all__ = ["Buffer", "Config", "topk_idx_t"]

topk_idx_t = torch.int64


class Config:
    """How many multiprocessors and chunks the kernels use, which changes no time here."""

    def __init__(self, num_sms: int = 20, *sizes: int) -> None:
        self.num_sms, self.sizes = num_sms, sizes

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handle:
    """Which tokens were sent, in the order of the ranks, and how many went to and came from each."""

    sent: Tensor
    num_tokens: int
    num_sent: list[int]
    num_received: list[int]


class _Exchanges:
    """Exchanges that are under way."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def current_stream_wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works = []


class Buffer:
    """The memory that tokens pass through, `num_nvl_bytes` and `num_rdma_bytes` of it, and the exchanges."""

    num_sms = 20

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, *_: Any, **__: Any) -> None:
        self.group, self.rank, self.group_size = group, dist.get_rank(group), dist.get_world_size(group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self._memory = torch.empty(num_nvl_bytes + num_rdma_bytes, dtype=torch.uint8, device="cuda")

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    get_combine_config = get_dispatch_config

    @staticmethod
    def capture() -> EventOverlap:
        from sandtable.vgpu.packages.deep_ep.events import EventHandle

        return EventOverlap(EventHandle())

    def destroy(self) -> None:
        self._memory = self._memory.new_empty(0)

    def get_dispatch_layout(
        self, topk_idx: Tensor, num_experts: int, previous_event: Any = None, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:
        """Return tokens per rank, per node (None), per expert, and which token goes to which rank."""
        _wait(previous_event)
        ranks = torch.div(topk_idx, num_experts // self.group_size, rounding_mode="floor")
        goes = (ranks.unsqueeze(-1) == torch.arange(self.group_size, device=topk_idx.device)).any(1)
        per_expert = torch.bincount(topk_idx[topk_idx >= 0], minlength=num_experts).to(torch.int32)
        return goes.sum(0).to(torch.int32), None, per_expert, goes, EventOverlap()

    def dispatch(
        self,
        x: Any,
        handle: _Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Tensor | None, Tensor | None, list[int] | None, _Handle | None, EventOverlap]:
        """Send tokens (or pairs of tokens and scales) to their ranks; a handle repeats an earlier dispatch."""
        _wait(previous_event)
        parts = x if isinstance(x, tuple) else (x,)
        if handle is not None:
            received, works = self._send(parts, handle, async_finish)
            return _like(x, received), None, None, None, None, EventOverlap(_Exchanges(works))
        assert num_tokens_per_rank is not None
        assert is_token_in_rank is not None
        handle = self._agree(num_tokens_per_rank, is_token_in_rank)
        received, works = self._send(parts, handle, async_finish)
        if topk_idx is None or topk_weights is None or num_tokens_per_expert is None:
            return _like(x, received), None, None, [], handle, EventOverlap(_Exchanges(works))
        (experts, weights), _ = self._send((topk_idx, topk_weights), handle, False)
        num_local = len(num_tokens_per_expert) // self.group_size
        local = experts - self.rank * num_local
        local = torch.where((local >= 0) & (local < num_local), local, -1)
        counts = torch.bincount(local[local >= 0], minlength=num_local).tolist()
        aligned = [-(-count // expert_alignment) * expert_alignment for count in counts]
        return _like(x, received), local, weights, aligned, handle, EventOverlap(_Exchanges(works))

    def combine(
        self,
        x: Tensor,
        handle: _Handle,
        topk_weights: Tensor | None = None,
        bias: Any = None,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Send tokens back to where they came from, and add up what belongs to one token."""
        _wait(previous_event)
        combined = self._return(x, handle)
        for addend in bias if isinstance(bias, tuple) else () if bias is None else (bias,):
            combined = combined + addend
        weights = None if topk_weights is None else self._return(topk_weights, handle)
        return combined, weights, EventOverlap()

    def _agree(self, num_tokens_per_rank: Tensor, is_token_in_rank: Tensor) -> _Handle:
        num_received = torch.empty_like(num_tokens_per_rank)
        dist.all_to_all_single(num_received, num_tokens_per_rank, group=self.group)
        return _Handle(
            sent=is_token_in_rank.t().nonzero()[:, 1],
            num_tokens=len(is_token_in_rank),
            num_sent=num_tokens_per_rank.tolist(),
            num_received=num_received.tolist(),
        )

    def _send(self, parts: tuple[Tensor, ...], handle: _Handle, in_background: bool) -> tuple[list[Tensor], list[Any]]:
        received, works = [], []
        for part in parts:
            out = part.new_empty((sum(handle.num_received), *part.shape[1:]))
            sizes = handle.num_received, handle.num_sent
            work = dist.all_to_all_single(out, part[handle.sent], *sizes, group=self.group, async_op=in_background)
            received.append(out)
            works += [work] if in_background else []
        return received, works

    def _return(self, x: Tensor, handle: _Handle) -> Tensor:
        back = x.new_empty((sum(handle.num_sent), *x.shape[1:]))
        dist.all_to_all_single(back, x.contiguous(), handle.num_sent, handle.num_received, group=self.group)
        return x.new_zeros((handle.num_tokens, *x.shape[1:])).index_add_(0, handle.sent, back)


def _wait(event: Any) -> None:
    if event is not None:
        event.current_stream_wait()


def _like(x: Any, received: list[Tensor]) -> Any:
    return tuple(received) if isinstance(x, tuple) else received[0]
