"""Captured profiles: seconds of a GPU that is not there.

The profiler was run on a virtual GPU. It recorded an event at the beginning and at the end of every pass, and the
engine says when each event would have happened on the card:

    forward  of layer 1, ..., layer n, the loss:  begin end begin end ... begin end
    backward of the loss, layer n, ..., layer 1:  begin end begin end ... begin end

The last minibatch counts; those before warmed up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sandtable.errors import PlanError
from sandtable.units import NS_PER_S

__all__ = ["predicted"]


def predicted(profile: Mapping[str, Any], event_times_ns: Sequence[int], *, device: str) -> dict[str, Any]:
    """The profile, as its file has it, with seconds by these events; those of the loss are in the last layer's."""
    layers = profile["layers"]
    wanted = 4 * (len(layers) + 1)
    if len(event_times_ns) < wanted:
        raise PlanError(
            f"a captured profile of {len(layers)} layers must have {wanted} events, but the capture has "
            f"{len(event_times_ns)}; capture it with `sandtable profile --cluster`"
        )
    last = [int(time) for time in event_times_ns[-wanted:]]
    spans = [(end - begin) / NS_PER_S for begin, end in zip(last[::2], last[1::2], strict=True)]
    forward, backward = spans[: len(layers) + 1], spans[: len(layers) : -1]
    for seconds in (forward, backward):
        of_loss = seconds.pop()
        seconds[-1] += of_loss
    rows = zip(layers, forward, backward, strict=True)
    timed = [{**layer, "forward_s": ahead, "backward_s": back} for layer, ahead, back in rows]
    return {**profile, "basis": "predicted", "device": device, "num_batches": 1, "layers": timed}
