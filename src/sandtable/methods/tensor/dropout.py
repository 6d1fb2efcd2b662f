"""Random numbers: different on each rank inside split layers, the same on all ranks outside.

Outside split layers every rank computes the same, so dropout must use the same masks everywhere: the ranks' generators
stay in step. Inside, ranks hold different heads or tokens, and equal masks would correlate them.

On entering a split layer, every rank draws the same number from its generator; plus its rank, that is the seed inside.
On leaving, the common state is restored. Nothing is kept between layers, so whatever restores torch's own state, such
as activation checkpointing or a resumed job, restores the masks inside as well.
"""

import torch
from torch import Tensor

from sandtable.methods.tensor.group import TensorGroup

__all__ = ["Randomness", "start_equal"]


class Randomness:
    """Switches this rank's generators between the common state outside and its own inside."""

    def __init__(self, group: TensorGroup) -> None:
        self._group = group
        self._seed = 0
        self._outside: list[tuple[torch.device, Tensor]] = []

    def enter(self, device: torch.device) -> None:
        """Make draws differ from rank to rank."""
        if self._is_inside():
            return
        self._seed = int(torch.randint(2**62, (), device="cpu")) + self._group.rank
        self._outside = [(generator, _state(generator)) for generator in _devices(device)]
        for generator, _ in self._outside:
            _seed(generator, self._seed)

    def leave(self) -> None:
        """Make draws equal on all ranks again."""
        if self._is_inside():
            for device, state in self._outside:
                _restore(device, state)
        self._outside = []

    def _is_inside(self) -> bool:
        """Return whether it has entered and nothing else has left: an error handler, an early-stopped recomputation."""
        return bool(self._outside) and torch.initial_seed() == self._seed


def start_equal(group: TensorGroup, device: torch.device) -> None:
    """Seed the generators of every rank with a number that the first rank draws and broadcasts from `device`."""
    seed = torch.randint(2**62, (1,), device="cpu").to(device)
    group.wire.broadcast(seed)
    torch.manual_seed(int(seed))


def _devices(device: torch.device) -> list[torch.device]:
    """Return the devices whose generators matter: the host and the device itself."""
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
