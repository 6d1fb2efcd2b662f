"""Inputs: what comes onto the card from outside, noted, or with a guide taken from another run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from sandtable.trace.guide import Guide
from sandtable.trace.real_values import BatchCopy, SeededDraw

__all__ = ["InputFollower"]


class InputFollower:
    """Answers the core when the host copies numbers to the card, and when random numbers are drawn there."""

    def __init__(self, core: ModuleType, guide: Guide) -> None:
        self._core = core
        self._guide = guide
        self.update = 0
        """How many updates have been made."""
        self.is_off = 0
        """More than 0 while the copies are not a batch's."""
        self.is_setup = True
        """Whether no optimizer has been made yet."""
        self.copies: list[BatchCopy] = []
        self.draws: list[SeededDraw] = []
        self._targets: list[int] = []
        self._counts: Counter[Any] = Counter()

    def copy(self, to: Any, source: Any) -> Any:
        """Return what to copy to the card in place of `source`, or None."""
        import torch

        # Constants, such as a world size, are the run's own; and weights come with the guide's parameters.
        is_batch = to.dim() > 0 and to.numel() > 1 and not (to.requires_grad and to.is_leaf)
        if self.is_off or not is_batch or source.numel() != to.numel():
            return None
        file, line = self._place()
        array = source.detach().float().numpy() if source.dtype == torch.bfloat16 else source.detach().numpy()
        self.copies.append(BatchCopy(place=(file, line), update=self.update, array=array.copy()))
        self._targets.append(to.data_ptr())
        key = (file, line, self.update)
        number = self._counts[key]
        self._counts[key] += 1
        offered = self._guide.copies.get(key, ())
        if number >= len(offered) or offered[number].shape != tuple(source.shape):
            return None
        return torch.from_numpy(offered[number].copy()).to(source.dtype)

    def draw(self, name: str, sizes: Sequence[int], seed: int) -> tuple[int, Sequence[int]]:
        """Return the seeds to draw with, and the dimension that they share; no seeds: the card's own."""
        place = self._place()
        draw = SeededDraw(
            name=name, place=place, update=self.update, sizes=tuple(sizes), seed=seed, is_setup=self.is_setup
        )
        self.draws.append(draw)
        key = (name, *place, self.update)
        number = self._counts[key]
        self._counts[key] += 1
        offered = self._guide.draws.get(key, ())
        if number >= len(offered) or offered[number].sizes != tuple(sizes):
            return 0, ()
        return offered[number].dim, offered[number].seeds

    def forget_copies_to(self, addresses: set[int]) -> None:
        """Forget copies of what turned out to be weights."""
        kept = [number for number, target in enumerate(self._targets) if target not in addresses]
        self.copies = [self.copies[number] for number in kept]
        self._targets = [self._targets[number] for number in kept]

    def _place(self) -> tuple[str, int]:
        file, line, _ = self._core.current_place()
        return str(file), int(line)
