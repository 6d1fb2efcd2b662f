"""Rules that read what was observed, each on observations that show the mistake and on some that do not."""

from types import SimpleNamespace
from typing import Any

from sandtable.check import RULES
from sandtable.findings import Finding, Severity
from sandtable.trace import CallIdentity, EventKind, GradientScale, InputCopy, Line, Observations, ScriptEvent

LOADER: dict[str, Any] = {
    "pass": 0,
    "samples": [1, 2, 3, 4],
    "made": ["train.py", 5],
    "dataset": "Images",
    "data": 0,
    "trains": True,
    "shuffles": True,
    "repeats": False,
    "is_own_sampler": False,
    "sampler": "RandomSampler",
    "batch_size": 8,
    "indices": [],
    "rows": [],
}


def event(kind: EventKind, row: int, *, line: int = 0, subject: int = 0, **facts: Any) -> ScriptEvent:
    place = Line("train.py", line or row)
    return ScriptEvent(kind=kind, row=row, place=place, subject=subject, facts=facts)


def loader(row: int, **facts: Any) -> ScriptEvent:
    return event(EventKind.LOADER, row, **{**LOADER, **facts})


def wrapped(*ranks: int) -> ScriptEvent:
    return event(EventKind.WRAPPED, 1, group=list(ranks))


def findings(rule: str, *events: list[ScriptEvent], **more: list[Any]) -> list[Finding]:
    """Return what a rule finds on as many ranks as there are lists of events."""
    observations = {
        rank: Observations(
            rank=rank, events=tuple(rows), **{name: tuple(values[rank]) for name, values in more.items()}
        )
        for rank, rows in enumerate(events)
    }
    trace: Any = SimpleNamespace(observations=observations, world_size=len(events), gpus_per_node=len(events))
    return list(RULES[rule](trace, None))


def lines(finding: Finding) -> list[int]:
    return [evidence.line for evidence in finding.evidence]


def test_a_scaler_that_never_scaled_is_found_with_the_backward_pass() -> None:
    backward = event(EventKind.BACKWARD, 3)
    (found,) = findings("loss-not-scaled", [backward, event(EventKind.UNSCALE, 4, is_enabled=True, has_scaled=False)])
    assert lines(found) == [3, 4]
    assert not findings("loss-not-scaled", [backward, event(EventKind.UNSCALE, 4, is_enabled=True, has_scaled=True)])
    assert not findings("loss-not-scaled", [backward, event(EventKind.UNSCALE, 4, is_enabled=False, has_scaled=False)])


def engine_steps(per_step: int) -> list[ScriptEvent]:
    facts: dict[str, Any] = {"framework": "DeepSpeed", "num_micro_batches": 4, "is_counted": False}
    rows: list[ScriptEvent] = []
    for _ in range(2):
        rows += [event(EventKind.FRAMEWORK_BACKWARD, 10, **facts) for _ in range(per_step)]
        rows.append(event(EventKind.ENGINE_STEP, 11, holders=[]))
    return rows


def test_micro_batches_that_engine_and_script_both_count_are_found() -> None:
    (found,) = findings("micro-batches-miscounted", engine_steps(4))
    assert lines(found) == [10, 11]
    assert not findings("micro-batches-miscounted", engine_steps(1))


def test_an_optimizer_beside_the_engine_is_found_and_that_of_the_engine_is_not() -> None:
    engine = event(EventKind.ENGINE_STEP, 12, holders=[0, 1])
    inner = event(EventKind.OPTIMIZER_STEP, 12, subject=1)
    (found,) = findings("step-beside-engine", [event(EventKind.OPTIMIZER_STEP, 11, subject=0), engine, inner])
    assert lines(found) == [11, 12]
    assert not findings("step-beside-engine", [event(EventKind.OPTIMIZER_STEP, 11, subject=2), engine, inner])


def test_batch_norm_over_few_samples_is_a_note() -> None:
    norms = event(EventKind.BATCH_NORMS, 2, names=["bn1"])
    (found,) = findings("small-batch-norm", [norms, loader(7, batch_size=2)])
    assert (found.severity, lines(found)) == (Severity.NOTE, [2, 5])
    assert not findings("small-batch-norm", [norms, loader(7, batch_size=32)])
    assert not findings("small-batch-norm", [loader(7, batch_size=2)])


def test_data_that_are_divided_twice_are_found() -> None:
    parts: dict[str, Any] = {"replicas": 4, "replica": 0}
    (found,) = findings("sampler-shards", [loader(7, **parts, parts_again=4)])
    assert "again" in found.message
    assert not findings("sampler-shards", [loader(7, **parts, parts_again=1)])


def own_orders(order: list[int]) -> list[ScriptEvent]:
    own: dict[str, Any] = {"is_own_sampler": True, "shuffles": False, "indices": order}
    return [loader(7, **own), loader(8, **own)]


def test_an_irregular_order_that_a_sampler_of_the_script_repeats_is_a_note() -> None:
    (found,) = findings("epoch-order", own_orders([5, 1, 4, 0, 3, 2]))
    assert found.severity is Severity.NOTE
    assert not findings("epoch-order", own_orders([0, 2, 4, 6, 8, 10]))


def test_passes_that_overlap_between_ranks_are_found_and_padding_is_not() -> None:
    batches = [
        [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        [[6, 5, 4], [3, 2, 1], [9, 8, 7]],
        [[11, 12, 13], [14, 15, 16], [1, 2, 3]],
    ]
    rows = [[wrapped(0, 1), loader(7, rows=part)] for part in batches]
    (found,) = findings("overlapping-samples", rows[0], rows[1])
    assert lines(found) == [5, 7]
    assert not findings("overlapping-samples", rows[0], rows[2])


def test_passes_that_came_to_their_end_must_have_read_the_same_samples() -> None:
    def over(rows: list[list[int]]) -> list[ScriptEvent]:
        samples = list(range(len(rows)))
        return [wrapped(0, 1), loader(7, rows=rows, samples=samples), event(EventKind.LOADER_END, 7, **{"pass": 0})]

    all_data = over([[1, 2, 3], [4, 5, 6], [7, 8]])
    assert findings("overlapping-samples", all_data, over([[8, 5, 4], [3, 7, 1], [2, 6]]))
    assert not findings("overlapping-samples", all_data, over([[6, 5, 4], [3, 12, 11], [9, 8]]))


def gradient_calls(identity: int) -> list[CallIdentity]:
    facts: dict[str, Any] = {"op": "all_reduce", "reduce": "sum", "group": (), "num_bytes": 4096, "phase": "backward"}
    return [CallIdentity(number=0, identity=identity, row=5, place=Line("train.py", 9), **facts)]


def test_ranks_that_share_samples_with_some_others_are_found() -> None:
    step = [wrapped(0, 1, 2, 3), event(EventKind.BACKWARD, 4), event(EventKind.OPTIMIZER_STEP, 6)]
    found = findings("same-samples", *[step] * 4, calls=[gradient_calls(7 + rank % 2) for rank in range(4)])
    assert [finding.ranks for finding in found] == [(0, 2), (1, 3)]
    assert not findings("same-samples", *[step] * 4, calls=[gradient_calls(7 + rank) for rank in range(4)])


def test_a_file_that_all_ranks_write_anew_is_a_note() -> None:
    write = event(EventKind.WRITE, 4, path="/x/weights.pkl", truncates=True)
    (found,) = findings("checkpoint-written-by-all", [write], [write])
    assert (found.severity, lines(found)) == (Severity.NOTE, [4])
    append = event(EventKind.WRITE, 4, path="/x/log.txt", truncates=False)
    assert not findings("checkpoint-written-by-all", [append], [append])


def test_a_metric_that_decides_on_each_rank_is_found() -> None:
    logs = [[event(EventKind.OWN_METRIC, 9, name="val_loss", identity=rank + 1, outline=rank + 1)] for rank in range(2)]
    (found,) = findings("metric-not-shared", *logs)
    assert lines(found) == [9]
    assert not findings("metric-not-shared", logs[0], logs[0])


def parts(rank: int, **facts: Any) -> list[ScriptEvent]:
    """Return two disjoint parts of six samples, others on each rank, and a training pass over the first."""
    order = [(index + rank) % 6 for index in range(6)]
    cut = [event(EventKind.SUBSET, 3, subject=number, data=1, indices=order[3 * number :][:3]) for number in (0, 1)]
    return [wrapped(0, 1), *cut, loader(7, data=0), *([loader(8, data=1)] if facts else [])]


def test_parts_that_overlap_between_ranks_are_found_unless_all_are_trained_on() -> None:
    assert len(findings("split-differs", parts(0), parts(1))) == 1
    assert not findings("split-differs", parts(0), parts(0))
    assert not findings("split-differs", parts(0, are_trained=True), parts(1, are_trained=True))


def tensor_parallel(samples: list[int]) -> dict[str, list[Any]]:
    """Return four ranks that add up activations in pairs, and average gradients across the pairs."""
    calls, scales, copies = [], [], []
    for rank, sample in enumerate(samples):
        pair, across = ((0, 1), (2, 3))[rank // 2], ((0, 2), (1, 3))[rank % 2]
        facts: dict[str, Any] = {"op": "all_reduce", "reduce": "sum", "num_bytes": 4096, "phase": "forward"}
        calls.append([CallIdentity(group=pair, number=0, identity=9, row=12, place=Line("train.py", 12), **facts)])
        scales.append(
            [GradientScale(row=14, step=1, place=Line(), parameters=(), factor=0.5, groups=(across,), groups_again=())]
        )
        copies.append([InputCopy(identity=sample, num_bytes=512, place=Line("train.py", 10), row=10)])
    return {"calls": calls, "scales": scales, "host_copies": copies}


def test_activations_of_different_samples_that_are_added_up_are_found() -> None:
    step = [
        event(EventKind.OPTIMIZER_MADE, 2),
        event(EventKind.OPTIMIZER_STEP, 6),
        event(EventKind.BACKWARD, 13),
        event(EventKind.OPTIMIZER_STEP, 15),
    ]
    (found,) = findings("replicated-differs", *[step] * 4, **tensor_parallel([1, 2, 3, 4]))
    assert lines(found) == [10, 12]
    assert not findings("replicated-differs", *[step] * 4, **tensor_parallel([1, 1, 2, 2]))


def test_equal_gradients_of_ranks_that_read_different_samples_are_a_note() -> None:
    step = [wrapped(0, 1), loader(2), event(EventKind.BACKWARD, 4), event(EventKind.OPTIMIZER_STEP, 6)]
    copies = [[InputCopy(identity=sample, num_bytes=512, place=Line("train.py", 3), row=3)] for sample in (1, 2)]
    calls = [gradient_calls(7), gradient_calls(7)]
    (drawn,) = findings("same-samples", step, step, calls=calls, host_copies=copies)
    (read,) = findings("same-samples", step, step, calls=calls, host_copies=[copies[0], copies[0]])
    assert (drawn.severity, read.severity) == (Severity.NOTE, Severity.WARNING)
