"""Host views: how a script looks into host memory without an operator of torch, while a copy may still fill it."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from sandtable.vgpu.observing.events import after, before

__all__ = ["follow_host_views"]


def follow_host_views(core: ModuleType) -> None:
    """Tell the core from now on what reads tensors in host memory besides operators."""
    import torch

    def on_list(tensor: Any) -> None:
        if tensor.device.type == "cpu":
            core.host_reads_memory(tensor, "tolist")

    def on_array(array: Any, tensor: Any, **options: Any) -> None:
        # What the script does with an array is not seen: its end is the last time it can have been read.
        view = core.begin_host_view(tensor)
        if view:
            weakref.finalize(array, core.end_host_view, view).atexit = False

    before(torch.Tensor, "tolist", on_list)
    after(torch.Tensor, "numpy", on_array)
