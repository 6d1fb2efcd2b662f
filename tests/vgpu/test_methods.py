"""Methods that split models, and parameter servers: a rehearsal records what ranks really send each other.

Every script runs twice, unmodified: on CPUs with gloo, where a witness counts, and on virtual GPUs with NCCL's
stand-in, where the trace does.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from tests.vgpu.capturing import capture
from tests.vgpu.real_ranks import observe
from tests.vgpu.witness import Calls

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.errors import ScriptError
from sandtable.trace import Phase, RankView, Trace

pytestmark = pytest.mark.slow
NUM_LAYERS = 4
MANY_STEPS = 99
LONGEST_HEADER = 512

Payloads = Counter[tuple[str, int]]
"""How often (direction, bytes of payload)."""


def calls_of(view: RankView) -> Calls:
    return Counter((call.op, call.bytes_in, call.bytes_out) for call in view.collectives())


def rehearse(script: str, *flags: object, world_size: int, num_steps: int = MANY_STEPS) -> Trace:
    return capture(script, *flags, world_size=world_size, num_steps=num_steps)


def check(script: str, *flags: object, world_size: int) -> None:
    """Every rank makes the calls that it really makes, and the clock can follow them to the last step."""
    real = observe(script, *flags, world_size=world_size)
    trace = rehearse(script, *flags, world_size=world_size)
    for rank, (calls, _) in enumerate(real):
        assert calls, f"rank {rank} said nothing"
        assert calls_of(trace.rank(rank)) == calls, f"rank {rank}"
    assert simulate(trace, load("dgx-a100", nodes=1)).step_ns > 0


@pytest.mark.parametrize(
    ("schedule", "world_size", "flags"),
    [
        ("gpipe", 2, ()),
        ("flush", 4, ("--replicas", "2,2")),
        ("interleaved", 2, ("--stages", 4)),
        ("pipedream", 3, ()),
        ("pipedream", 4, ("--replicas", "2,1,1")),
        ("vertical-sync", 2, ("--recompute",)),
        ("2bw", 2, ()),
    ],
)
def test_a_captured_pipeline_says_what_a_real_one_says(
    schedule: str, world_size: int, flags: tuple[object, ...]
) -> None:
    check("pipeline.py", "--schedule", schedule, "--steps", 5, *flags, world_size=world_size)


@pytest.mark.parametrize("schedule", ["flush", "pipedream"])
def test_three_axes_at_once_say_what_they_really_say(schedule: str) -> None:
    check("pipeline_gpt.py", "--pp", 2, "--tp", 2, "--schedule", schedule, "--seq-len", 16, world_size=8)


@pytest.mark.parametrize("flags", [(), ("--sequence-parallel",)], ids=["", "sequence"])
def test_captured_tensor_parallelism_says_what_it_really_says(flags: tuple[str, ...]) -> None:
    check("tensor_parallel_gpt.py", "--tp", 2, "--seq-len", 16, *flags, world_size=4)


def test_a_captured_convolution_net_split_by_channels_says_what_it_really_says() -> None:
    check("tensor_parallel_cnn.py", "--tp", 2, "--width", 4, world_size=4)


def test_a_captured_layer_has_two_all_reduces_forward_and_two_backward() -> None:
    trace = rehearse("tensor_parallel_gpt.py", "--tp", 2, "--seq-len", 16, world_size=4, num_steps=2)
    view = trace.rank(0)
    hidden_bytes = 2 * 16 * 64 * 4
    found = Counter(
        call.phase
        for call in view.collectives(view.step_slices()[-1])
        if (call.op, call.group.name, call.bytes_in) == ("all_reduce", "mesh_tp", hidden_bytes)
    )
    # One more forward for the embedding, and one more backward for the output layer.
    assert found == {Phase.FORWARD: 2 * NUM_LAYERS + 1, Phase.BACKWARD: 2 * NUM_LAYERS + 1}


def sizes_of(payloads: set[int]) -> dict[int, int]:
    """The size that stands for each payload: shards that differ by less than a header may have are one."""
    found: dict[int, int] = {}
    last = -LONGEST_HEADER
    for payload in sorted(payloads):
        found[payload] = found[last] if payload - last < LONGEST_HEADER else payload
        last = payload
    return found


def payloads_of(view: RankView, sizes: dict[int, int]) -> Payloads:
    """A message's payload is the largest of those known that its bytes have room for: headers are short."""
    found: Payloads = Counter()
    for call in view.collectives():
        num_bytes = call.bytes_in + call.bytes_out
        payload = max(size for size in sizes if size < num_bytes)
        assert num_bytes - payload < LONGEST_HEADER
        found[call.op, sizes[payload]] += 1
    return found


def check_payloads(
    script: str, *flags: object, world_size: int, counts: Callable[[int], bool] = lambda size: True
) -> None:
    """Every rank sends and receives what it really does; headers hold seconds, and so differ by a few digits.

    `counts` says payloads of which size do.
    """
    real = observe(script, *flags, world_size=world_size)
    trace = rehearse(script, *flags, world_size=world_size)
    sizes = sizes_of({0} | {payload for _, messages in real for _, _, payload in messages})
    for rank, (_, messages) in enumerate(real):
        expected = Counter((direction, sizes[payload]) for direction, _, payload in messages)
        assert len(expected) > 1, f"rank {rank} said nothing"
        assert _only(payloads_of(trace.rank(rank), sizes), counts) == _only(expected, counts), f"rank {rank}"
    if len(trace.signatures):
        assert simulate(trace, load("dgx-a100", nodes=1)).step_ns > 0


def _only(payloads: Payloads, counts: Callable[[int], bool]) -> Payloads:
    return Counter({key: number for key, number in payloads.items() if counts(key[1])})


@pytest.mark.parametrize("sync", ["bulk", "async"])
def test_captured_parameter_servers_are_told_what_real_ones_are(sync: str) -> None:
    check_payloads("parameter_server.py", "--sync", sync, "--steps", 4, world_size=4)


def test_captured_downpour_replicas_say_what_they_really_say() -> None:
    flags = ("--lockstep", "--warm-start", 0, "--steps", 12)
    check_payloads("distbelief.py", *flags, world_size=5)


def test_a_captured_sandblaster_moves_the_weights_and_gradients_that_it_really_moves() -> None:
    # One replica: which of several gets a portion depends on the moment, as does how often the coordinator hears of it.
    flags = ("--method", "sandblaster", "--iterations", 3)
    check_payloads("distbelief.py", *flags, world_size=4, counts=lambda size: size > 0)


def test_a_line_search_without_values_is_refused() -> None:
    with pytest.raises(ScriptError, match=r"it is 0 at the first weights.*replicas on the CPU"):
        rehearse("distbelief.py", "--method", "sandblaster", "--device", "cuda", world_size=4)
