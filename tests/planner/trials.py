"""Trials with figures of the test's choice."""

from typing import Any

from sandtable.planner.objectives import parse_objective
from sandtable.planner.ranking import Plan
from sandtable.planner.search_space import Knob, SearchSpace
from sandtable.planner.trial import Outcome, Trial, TrialFigures, TrialState

GIB = 2**30


def trial(name: str, seconds: float = 1.0, *, gib: float = 8, capacity_gib: float = 80, **figures: Any) -> Trial:
    """Return a trial that was priced; `name` is its value of the knob `x`."""
    parts = figures.pop("parts", {"forward": seconds})
    return Trial(
        values={"x": name, **figures.pop("values", {})},
        command=("torchrun", "train.py", name),
        outcome=Outcome(
            state=TrialState.PRICED,
            figures=TrialFigures(
                **{
                    "step_seconds": seconds,
                    "num_gpus": 8,
                    "memory_bytes": round(gib * GIB),
                    "capacity_bytes": round(capacity_gib * GIB),
                    "mfu": 0.4,
                    "mfu_dtype": "bfloat16",
                    "model_flops": 10**15,
                    "parts": parts,
                    **figures,
                }
            ),
        ),
    )


def failed(
    name: str, reason: str, *, state: TrialState = TrialState.REJECTED, needed_gib: float | None = None
) -> Trial:
    """Return a trial without figures."""
    needed = None if needed_gib is None else round(needed_gib * GIB)
    outcome = Outcome(state=state, reason=reason, place="train.py:3", needed_bytes=needed)
    return Trial(values={"x": name}, command=("torchrun", "train.py", name), outcome=outcome)


def plan_of(*trials: Trial, objectives: tuple[str, ...] = ("time",), **fields: Any) -> Plan:
    """Return the plan of these trials."""
    names = tuple(dict.fromkeys(name for one in trials for name in one.values))
    knobs = tuple(Knob(name, tuple(dict.fromkeys(one.values[name] for one in trials))) for name in names)
    fields = {"space": SearchSpace(knobs=knobs), **fields}
    return Plan(trials=trials, objectives=tuple(map(parse_objective, objectives)), **fields)
