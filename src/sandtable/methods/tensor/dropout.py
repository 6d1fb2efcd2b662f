"""Randomness where work is split: each rank its own, and the same for all where it is not.

Outside split layers every rank computes the same, so dropout must fall on the same places everywhere: the ranks'
generators go in step. Inside, ranks hold different heads or tokens, and equal masks would tie them to each other.

On the way in one number is drawn from the common generator, which every rank has equal; with the rank added it is the
seed inside. On the way out the common state is put back. Nothing is kept between layers: whatever restores torch's own
state, such as activation checkpointing or a resumed job, restores the masks inside as well.
"""

import torch
from torch import Tensor

from sandtable.methods.tensor.group import TensorGroup

__all__ = ["Randomness", "start_equal"]


class Randomness:
    """The generators of this rank: the common ones outside, its own inside."""

    def __init__(self, group: TensorGroup) -> None:
        self._group = group
        self._seed = 0
        self._outside: list[tuple[torch.device, Tensor]] = []

    def enter(self, device: torch.device) -> None:
        """From here on, draws differ from rank to rank."""
        if self._is_inside():
            return
        self._seed = int(torch.randint(2**62, (), device="cpu")) + self._group.rank
        self._outside = [(each, _state(each)) for each in _devices(device)]
        for each, _ in self._outside:
            _seed(each, self._seed)

    def leave(self) -> None:
        """From here on, draws are equal again."""
        if self._is_inside():
            for device, state in self._outside:
                _restore(device, state)
        self._outside = []

    def _is_inside(self) -> bool:
        """Entered, and not brought out by somebody else: an error handler, a recomputation that was cut short."""
        return bool(self._outside) and torch.initial_seed() == self._seed


def start_equal(group: TensorGroup, device: torch.device) -> None:
    """Seed the generators of every rank with a number that the first one draws; it travels by way of `device`."""
    seed = torch.randint(2**62, (1,), device="cpu").to(device)
    group.wire.broadcast(seed)
    torch.manual_seed(int(seed))


def _devices(device: torch.device) -> list[torch.device]:
    """The host's generator and the device's own."""
    return [device] if device.type == "cpu" else [torch.device("cpu"), device]


def _state(device: torch.device) -> Tensor:
    state: Tensor = (
        torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    )
    return state


def _restore(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def _seed(device: torch.device, seed: int) -> None:
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        with torch.get_device_module(device).device(device):
            torch.get_device_module(device).manual_seed(seed)
