"""Predicted profiles: layer times on a GPU that you do not have.

The profiler runs as a script on one virtual GPU. It records an event at the beginning and at the end of every pass, and
the engine computes when each event would have happened on the card:

    forward  of layer 1, ..., layer n, the loss:  begin end begin end ... begin end
    backward of the loss, layer n, ..., layer 1:  begin end begin end ... begin end

The last minibatch counts; those before it are warm-up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sandtable.errors import MethodError, PlanError, ScriptError
from sandtable.events import Listener, ignore
from sandtable.pipeline_profile import Profile, ProfileRequest
from sandtable.rehearsal import LaunchOptions, Rehearsal, rehearse
from sandtable.units import NS_PER_S

__all__ = ["predict_profile", "with_event_times"]

_SCRIPT = "sandtable.methods.pipeline"
_MAX_OPERATORS = 100_000_000


def predict_profile(request: ProfileRequest, cluster: str | Path, *, listen: Listener = ignore) -> Profile:
    """Profile on one virtual GPU of `cluster`, a name in the catalogue or a TOML file, with predicted times.

    `listen` receives the events of the rehearsal. The request's `num_batches` and `device` do not matter here.
    """
    with tempfile.TemporaryDirectory(prefix="sandtable-") as directory:
        file = Path(directory) / "profile.json"
        on_gpu = replace(request, num_batches=1, device="cuda", show_progress=False)
        run = _rehearse(on_gpu, file, cluster, listen)
        event_times_ns = run.timeline.event_times_ns(0).tolist()
        profile = Profile.load(file)
    return with_event_times(profile, event_times_ns, device=run.cluster.device.name)


def with_event_times(profile: Profile, event_times_ns: Sequence[int], *, device: str) -> Profile:
    """Replace the seconds by those between events; the loss counts for the last layer."""
    layers = profile.layers
    num_events = 4 * (len(layers) + 1)
    if len(event_times_ns) < num_events:
        raise PlanError(
            f"a captured profile of {len(layers)} layers must have {num_events} events, but the capture has "
            f"{len(event_times_ns)}; capture it with `sandtable profile --cluster`"
        )
    last = [int(time) for time in event_times_ns[-num_events:]]
    spans = [(end - begin) / NS_PER_S for begin, end in zip(last[::2], last[1::2], strict=True)]
    forward, backward = spans[: len(layers) + 1], spans[: len(layers) : -1]
    for seconds in (forward, backward):
        of_loss = seconds.pop()
        seconds[-1] += of_loss
    timed = tuple(
        replace(layer, forward_s=forward_s, backward_s=backward_s)
        for layer, forward_s, backward_s in zip(layers, forward, backward, strict=True)
    )
    return replace(profile, basis="predicted", device=device, num_batches=1, layers=timed)


def _rehearse(request: ProfileRequest, file: Path, cluster: str | Path, listen: Listener) -> Rehearsal:
    """Run the profiler's script on one virtual GPU; it writes `file`."""
    command = ("sandtable", "profile", request.function)
    options = LaunchOptions(
        ranks_per_node=1, is_module=True, max_operators=_MAX_OPERATORS, command=command, listen=listen
    )
    run = rehearse(_SCRIPT, request.to_json(), str(file), cluster=cluster, nodes=1, steps=1, options=options)
    if isinstance(run.error, ScriptError):
        kind, _, message = run.error.traceback.strip().rpartition("\n")[2].partition(": ")
        if kind.endswith(MethodError.__name__):  # the profiler's own refusal, which reads the same on a real device
            raise MethodError(message)
    return run
