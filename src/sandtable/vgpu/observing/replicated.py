"""Replicated tensors: those that a script or a parallel style declares to be the same on all ranks of a mesh's dim.

`DTensor.from_local` with `Replicate()` is such a declaration. It is checked by nobody on a real cluster; here the
identities of what each rank gives tell.
"""

from __future__ import annotations

from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, after

__all__ = ["follow_replicated"]

_MOST_TENSORS = 128
_FEWEST_ELEMENTS = 8


def follow_replicated(log: EventLog) -> None:
    """Note the first of these tensors from now on."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    seen = 0

    def on_declared(result: Any, local: Any, *args: Any, **options: Any) -> None:
        nonlocal seen
        if seen >= _MOST_TENSORS or local.numel() < _FEWEST_ELEMENTS or log.core.is_compiling():
            return
        mesh = result.device_mesh
        dims = [dim for dim, placement in enumerate(result.placements) if placement.is_replicate()]
        for dim in dims if mesh.device_type != "cpu" else ():
            group = dist.get_process_group_ranks(mesh.get_group(dim))
            if len(group) > 1:
                seen += 1
                identities, outlines = log.core.identities_of([local.detach()])
                log.note(
                    EventKind.REPLICATED,
                    group=group,
                    identity=int(identities[0]),
                    outline=int(outlines[0]),
                    shape=list(local.shape),
                )

    after(DTensor, "from_local", on_declared)
    DTensor.from_local = staticmethod(DTensor.from_local)  # type: ignore[method-assign]
