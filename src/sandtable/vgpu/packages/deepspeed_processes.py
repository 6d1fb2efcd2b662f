"""DeepSpeed's optimizers in processes of their own: SuperOffload's, and ZenFlow's that overlaps with training.

Each rank starts one process on its host, which updates parameters in host memory while the rank computes on. Here no
process starts: an update is a record (`Work.place` is "process") on a stream of its own, and the rank waits for that
stream where it would wait for the process. The states of the process are allocated and never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["adapt_superoffload", "adapt_zenflow"]


def adapt_superoffload(module: ModuleType) -> None:
    """Have SuperOffload's optimizer start no process."""
    module.SuperOffloadCPUOptimizer = SuperOffloadOptimizer  # type: ignore[attr-defined]


def adapt_zenflow(module: ModuleType) -> None:
    """Have ZenFlow's overlapped optimizer start no process."""
    module.start_optimizer_process = _start_zenflow  # type: ignore[attr-defined]


class HostProcess:
    """A process on the host: does one piece of work after the other, beside the rank."""

    def __init__(self) -> None:
        import torch

        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def update(self, tensors: Sequence[Tensor], *, copied_bytes: int) -> torch.cuda.Event:
        """Record an update of (parameters, gradients, states), with bytes that are copied for it; return its end."""
        import torch

        read = sum(tensor.nbytes for tensor in tensors) + copied_bytes
        written = read - tensors[1].nbytes
        work = Work(place="process", bytes_read=read, bytes_written=written)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            record_kernel("deepspeed::cpu_adam", inputs=tensors, outputs=(), work=work)
            end: torch.cuda.Event = self._stream.record_event()
        return end


class SuperOffloadOptimizer:
    """Stands in for `SuperOffloadCPUOptimizer`: takes a sub-group at a time and returns it updated."""

    def __init__(
        self,
        optimizer_config: Any,
        cpuadam_cores_perc: float = 0.8,
        max_grad_numel: int = 1000000,
        pin_memory: bool = True,
    ) -> None:
        import torch

        self._process = HostProcess()
        self._gradients = torch.empty(max_grad_numel, dtype=torch.float32)
        self._states: dict[int, tuple[Tensor, Tensor]] = {}
        self._results: list[tuple[torch.cuda.Event, Mapping[str, Any]]] = []
        self._is_just_requested = False

    def async_step(
        self,
        param_group_id: int,
        sub_group_id: int,
        fp32_param: Tensor,
        fp32_grad: Tensor,
        rollback: bool = False,
        lr: float | None = None,
    ) -> None:
        """Update a sub-group, or take its last update back; the process first copies the gradients."""
        import torch

        if sub_group_id not in self._states:
            self._states[sub_group_id] = torch.empty_like(fp32_param), torch.empty_like(fp32_param)
        tensors = [fp32_param, fp32_grad, *self._states[sub_group_id]]
        end = self._process.update(tensors, copied_bytes=fp32_grad.nbytes)
        result = {
            "param_group_id": param_group_id,
            "sub_group_id": sub_group_id,
            "updated_param": fp32_param,
            "event_type": "rollback" if rollback else "adam_step",
        }
        self._results.append((end, result))
        self._is_just_requested = True

    def get_result(self, expected_event_type: str | None = None) -> Mapping[str, Any] | None:
        """Return the oldest update, and wait for it; None right after one was asked for, as it takes a while."""
        if self._is_just_requested or not self._results:
            self._is_just_requested = False
            return None
        end, result = self._results.pop(0)
        end.synchronize()
        return result

    def close(self) -> None:
        """End the process, which there is none of."""


class ZenFlowProcess:
    """Stands in for the process and for the compiled functions by which a rank talks to it."""

    def __init__(self, groups: Sequence[Sequence[Tensor]]) -> None:
        """Each group is (parameters, two buffers of gradients that take turns, last parameters)."""
        import torch

        self._process = HostProcess()
        self._groups = groups
        self._states = [[torch.empty_like(group[0]) for _ in range(4)] for group in groups]
        self._end: torch.cuda.Event | None = None

    def zenflow_adam_submit(self, address: int, turn: int, *settings: object) -> None:
        """Update all groups with the gradients whose turn it is, and keep a copy of the parameters."""
        for (parameters, *gradients, _), states in zip(self._groups, self._states, strict=True):
            tensors = [parameters, gradients[turn], *states[2 * turn : 2 * turn + 2]]
            self._end = self._process.update(tensors, copied_bytes=parameters.nbytes)

    def zenflow_adam_wait(self, address: int, seconds: float) -> bool:
        """Wait until the last update has ended."""
        if self._end is not None:
            self._end.synchronize()
        return True


def _start_zenflow(optimizer: Any) -> None:
    """Give ZenFlow's optimizer what it has once its process is ready."""
    import torch

    if optimizer.zf_stage3:
        partitions = list(optimizer.fp32_partitioned_groups_flat)
    else:
        partitions = [group["params"][0] for group in optimizer.optimizer.param_groups]
    for partition in partitions:
        if not hasattr(partition, "stale_param"):
            partition.stale_param = torch.zeros_like(partition.data)
    optimizer.zf_op = ZenFlowProcess([(each.data, *each.overlap_grad, each.stale_param.data) for each in partitions])
    optimizer.zf_ctrl = torch.zeros(1, dtype=torch.uint8)
    optimizer.process_optimizer_established = True
