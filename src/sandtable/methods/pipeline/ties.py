"""Tied weights: one parameter of which several stages hold a copy, such as an embedding that is also the output layer.

Each copy gets a gradient in its own stage. Their sum is the gradient of the parameter; with the same sum on all ranks
that hold a copy, the copies stay equal. Each rank sends its gradient to the others as soon as it has it, and adds them
up in stage order when it makes the update, so that the sums are bit-identical.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.links import Links

__all__ = ["Tie", "Ties", "check_copies", "find_ties"]

Tie = Sequence[tuple[int, str]]
"""(stage, name of the parameter in that stage) of each copy."""


class Ties:
    """The ties between stages of one pipeline, as seen from one rank."""

    def __init__(
        self, ties: Sequence[Tie], modules: Mapping[int, nn.Module], *, layout: StageLayout, rank: int, links: Links
    ) -> None:
        self._links = links
        self._rank = rank
        self._copies: list[tuple[nn.Parameter, list[int]]] = []
        self._num_sent = 0
        self._num_added = 0
        for tie in ties:
            column = layout.column(rank)
            holders = sorted({column[stage % layout.num_places] for stage, _ in tie})
            copies = _copies(tie, modules)
            if copies and len(holders) > 1:
                self._copies.append((copies[0], holders))

    @torch.no_grad()
    def start_equal(self) -> None:
        """Set all copies to the first stage's."""
        self._send([parameter for parameter, _ in self._copies])
        for parameter, values in zip(self._parameters, self._receive(self._parameters), strict=True):
            parameter.copy_(values[0])

    @torch.no_grad()
    def send(self) -> None:
        """Send this rank's gradients to the other holders; a copy without one counts as zero."""
        self._send(self._gradients())

    @torch.no_grad()
    def add_up(self) -> None:
        """Set the gradient of every copy to the sum of those sent, with this rank's current gradients as its own."""
        for parameter, gradients in zip(self._parameters, self._receive(self._gradients()), strict=True):
            total = gradients[0].clone()
            for gradient in gradients[1:]:
                total.add_(gradient)
            parameter.grad = total

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter, _ in self._copies]

    def _gradients(self) -> list[Tensor]:
        return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in self._parameters]

    def _send(self, values: Sequence[Tensor]) -> None:
        for value, (_, holders) in zip(values, self._copies, strict=True):
            # The update may overwrite the value while it is still being sent.
            sent = value.detach().clone()
            for holder in holders:
                if holder != self._rank:
                    self._links.ties_out.send(holder, self._num_sent, [sent])
                    self._links.ties_in.expect(self._key(self._num_sent, holder), holder)
            self._num_sent += 1

    def _receive(self, own: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return for each tie what its holders sent, in their order."""
        received = []
        for value, (_, holders) in zip(own, self._copies, strict=True):
            received.append([value if holder == self._rank else self._take(holder) for holder in holders])
            self._num_added += 1
        return received

    def _take(self, holder: int) -> Tensor:
        message = self._links.ties_in.take(self._key(self._num_added, holder), what="a tied parameter's gradient")
        (tensor,) = message.tensors
        assert tensor is not None
        return tensor

    def _key(self, number: int, holder: int) -> int:
        return number * self._links.num_ranks + holder


def find_ties(stages: Sequence[nn.Module | None]) -> list[Tie]:
    """Return the parameters that more than one of the given stages holds."""
    places: dict[nn.Parameter, list[tuple[int, str]]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters() if isinstance(stage, nn.Module) else ():
            places.setdefault(parameter, []).append((number, name))
    return [copies for copies in places.values() if len(copies) > 1]


def check_copies(ties: Sequence[Tie], modules: Mapping[int, nn.Module]) -> None:
    """Check that every copy held here exists, and that copies on one rank are one Parameter."""
    for stage, name in (copy for tie in ties for copy in tie):
        if stage in modules and name not in (names := dict(modules[stage].named_parameters(remove_duplicate=False))):
            raise MethodError(
                f"a tie must name a parameter of its stage, but stage {stage} has no '{name}'; it has "
                f"{', '.join(list(names)[:5])} ..."
            )
    for tie in ties:
        if len(copies := _copies(tie, modules)) > 1:
            raise MethodError(
                f"copies of a tied parameter on one rank must be the same Parameter, but {list(tie)} are "
                f"{len(copies)} different ones; assign one to the other before making the pipeline"
            )


def _copies(tie: Tie, modules: Mapping[int, nn.Module]) -> list[nn.Parameter]:
    """Return the copies held here; one with two names counts once."""
    copies = [modules[stage].get_parameter(name) for stage, name in tie if stage in modules]
    return list({id(parameter): parameter for parameter in copies}.values())
