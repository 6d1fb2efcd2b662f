"""Calls as columns: the same calls come back, from columns, from calls and from JSON."""

import json
from typing import Any

import numpy as np

from sandtable.trace import CallIdentity, Line, Observations, ObservedCalls

PLACES = (Line("train.py", 3, "train"), Line("train.py", 7, "train"))


def call(number: int, **changes: object) -> CallIdentity:
    values = {
        "op": "all_reduce",
        "reduce": "sum",
        "group": (0, 1),
        "number": number,
        "identity": 2**64 - 1 - number,
        "num_bytes": 1 << 40,
        "phase": "backward",
        "place": PLACES[number % 2],
        "row": 5 * number,
    }
    return CallIdentity(**values | changes)  # type: ignore[arg-type]


CALLS = (call(0), call(1), call(2, group=(), op="send", reduce=""))


def test_calls_come_back_from_columns_and_from_json() -> None:
    calls = ObservedCalls.of(CALLS)
    assert (len(calls), tuple(calls), calls[1], calls[1:]) == (3, CALLS, CALLS[1], CALLS[1:])
    again = ObservedCalls.from_json(json.loads(json.dumps(calls.to_json())))
    assert again == CALLS
    assert again == calls
    assert ObservedCalls.of(again) is again


def test_no_calls_are_an_empty_sequence() -> None:
    assert tuple(ObservedCalls.from_json(ObservedCalls.of(()).to_json())) == ()


def test_tables_keep_only_what_occurs() -> None:
    columns = {name: np.array([0, 2]) for name in ("op", "reduce", "group", "phase", "place", "number", "row")}
    columns |= {"identity": np.array([1, 2], dtype=np.uint64), "num_bytes": np.array([8, 8])}
    names = ["a", "b", "c"]
    tables: dict[str, list[Any]] = dict.fromkeys(("op", "reduce", "phase"), names)
    tables |= {"group": [(0,), (1,), (2,)], "place": [*PLACES, PLACES[0]]}
    calls = ObservedCalls(columns, tables)
    assert [(row.op, row.group) for row in calls] == [("a", (0,)), ("c", (2,))]
    document: Any = calls.to_json()
    assert document["tables"]["op"] == ["a", "c"]


def test_observations_keep_their_calls() -> None:
    observed = Observations(rank=3, calls=CALLS)
    again = Observations.from_json(json.loads(json.dumps(observed.to_json())))
    assert tuple(again.calls) == CALLS
