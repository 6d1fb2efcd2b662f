"""The plan: a table for the terminal, and plain data for files."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandtable.planner.ranking import Plan
from sandtable.planner.trial import Outcome, Trial
from sandtable.units import format_bytes, format_count, format_seconds

__all__ = ["plan_json", "print_plan"]

_MOST_ROWS = 10
_MOST_REASONS = 8
_MOST_NOTES = 72


def print_plan(plan: Plan, console: Console) -> None:
    """Print the best configurations and why the others lose, what was rejected, and the command to launch."""
    console.print(_headline(plan), highlight=False)
    if plan.best is None:
        _print_nothing_runs(plan, console)
        return
    console.print()
    console.print(_table(plan))
    if len(plan.ties) > 1:
        console.print(f"The first {len(plan.ties)} are too close for a prediction to tell them apart.", highlight=False)
    _print_front(plan, console)
    _print_reasons(plan, console)
    _print_notes(plan, console)
    console.print("\n[bold]launch[/bold]", highlight=False)
    console.print(shlex.join(plan.best.command), markup=False, highlight=False, soft_wrap=True)


def plan_json(plan: Plan) -> str:
    """Return the whole plan, the content of plan.json."""
    data = {
        "schema": "sandtable-plan",
        "version": 1,
        "objectives": [objective.name for objective in plan.objectives],
        "knobs": {knob.name: list(knob.values) for knob in plan.space.knobs},
        "conditions": list(plan.space.conditions),
        "seconds": plan.seconds,
        "command": None if plan.best is None else shlex.join(plan.best.command),
        "ranked": [_trial_data(plan, trial) for trial in plan.ranked],
        "ties": [dict(trial.values) for trial in plan.ties],
        "front": [dict(trial.values) for trial in plan.front],
        "out_of_memory": [_reason_data(trial) for trial in plan.too_large],
        "rejected": [_reason_data(trial) for trial in plan.rejected],
        "excluded": [{"values": one.to_dict(), "condition": condition} for one, condition in plan.excluded],
        "num_untried": plan.num_untried,
        "ignored_knobs": list(plan.ignored_knobs),
    }
    return json.dumps(data, indent=1) + "\n"


def _trial_data(plan: Plan, trial: Trial) -> dict[str, Any]:
    figures = trial.figures
    data = trial.outcome.to_dict()["figures"]
    growth = [{"part": part.part, "seconds": part.seconds} for part in plan.growth(trial)]
    return {
        "values": dict(trial.values),
        "command": shlex.join(trial.command),
        **data,
        "tokens_per_s_per_gpu": figures.tokens_per_s_per_gpu,
        "loses_by": growth,
        "rehearsal_seconds": trial.outcome.seconds,
    }


def _reason_data(trial: Trial) -> dict[str, Any]:
    outcome = trial.outcome
    return {"values": dict(trial.values), "reason": _reason(outcome), "place": outcome.place}


def _headline(plan: Plan) -> str:
    counts = [f"[bold]{format_count(len(plan.ranked))}[/bold] run"]
    counts += [f"{len(plan.too_large)} need more memory"] if plan.too_large else []
    counts += [f"{len(plan.rejected)} rejected"] if plan.rejected else []
    counts += [f"{len(plan.excluded)} excluded by conditions"] if plan.excluded else []
    counts += [f"{plan.num_untried} not tried"] if plan.num_untried else []
    return f"{format_count(plan.space.size)} configurations in {format_seconds(plan.seconds)}: {', '.join(counts)}"


def _table(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", justify="right")
    for knob in plan.space.knobs:
        table.add_column(knob.name, justify="right")
    has_tokens = any(trial.figures.tokens_per_step for trial in plan.ranked)
    has_price = any(trial.figures.usd_per_step for trial in plan.ranked)
    for name in (
        "step",
        *(["tokens/s/GPU"] if has_tokens else []),
        *(["$/step"] if has_price else []),
        "MFU",
        "memory",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where the step is longer than with the best")
    for number, trial in enumerate(plan.ranked[:_MOST_ROWS], 1):
        table.add_row(*_row(plan, number, trial, has_tokens=has_tokens, has_price=has_price))
    return table


def _row(plan: Plan, number: int, trial: Trial, *, has_tokens: bool, has_price: bool) -> list[str]:
    figures = trial.figures
    rate, price = figures.tokens_per_s_per_gpu, figures.usd_per_step
    row = [str(number), *(escape(str(value)) for value in trial.values.values()), format_seconds(figures.step_seconds)]
    row += [format_count(round(rate)) if rate is not None else ""] if has_tokens else []
    row += [f"{price:.3g}" if price is not None else ""] if has_price else []
    row.append(f"{figures.mfu:.1%}" if figures.mfu is not None else "")
    row.append(f"{format_bytes(figures.memory_bytes)} ({figures.memory_share:.0%})")
    row.append(", ".join(f"{part.part} +{format_seconds(part.seconds)}" for part in plan.growth(trial)))
    return row


def _print_front(plan: Plan, console: Console) -> None:
    if len(plan.objectives) < 2:
        return
    console.print(f"\n[bold]Pareto front[/bold] of {', '.join(one.name for one in plan.objectives)}", highlight=False)
    for trial in plan.front[:_MOST_ROWS]:
        figures = ", ".join(one.describe(one.require(trial.figures)) for one in plan.objectives)
        console.print(f"  {escape(trial.name)}: {figures}", highlight=False)


def _print_reasons(plan: Plan, console: Console) -> None:
    """Print why configurations do not run, equal reasons once."""
    reasons = Counter(_reason(trial.outcome) for trial in plan.rejected)
    reasons.update(f"excluded by '{condition}'" for _, condition in plan.excluded)
    if plan.too_large:
        reasons["out of memory"] = len(plan.too_large)
    if reasons:
        console.print("\n[bold]rejected[/bold]", highlight=False)
    for reason, count in reasons.most_common(_MOST_REASONS):
        console.print(f"  {count} x {reason}", markup=False, highlight=False, soft_wrap=True)
    if len(reasons) > _MOST_REASONS:
        console.print(f"  and {len(reasons) - _MOST_REASONS} more reasons in plan.json", highlight=False)


def _print_notes(plan: Plan, console: Console) -> None:
    for knob in plan.ignored_knobs:
        console.print(f"note: the value of {escape(knob)} changes no figure; the script may ignore it", highlight=False)
    if plan.work_differs() and plan.objectives[0].name == "time":
        console.print(
            "note: configurations do different amounts of work in a step, so step times do not compare; give "
            "--tokens-per-step, which may be an expression such as '{mb} * 2048', and --objective throughput",
            markup=False,
            highlight=False,
        )


def _print_nothing_runs(plan: Plan, console: Console) -> None:
    if plan.too_large:
        console.print("Of the configurations that start, none fits into the memory of the cards.", highlight=False)
    for trial in (*plan.too_large, *plan.rejected)[:_MOST_REASONS]:
        place = f" ({trial.outcome.place})" if trial.outcome.place else ""
        console.print(f"  {trial.name}: {_reason(trial.outcome)}{place}", markup=False, highlight=False, soft_wrap=True)


def _reason(outcome: Outcome) -> str:
    figures = outcome.figures
    if figures is not None:
        return f"uses {figures.memory_share:.0%} of the card's memory"
    if outcome.needed_bytes is not None:
        return f"needs {format_bytes(outcome.needed_bytes)} per card"
    place = f" ({outcome.place})" if outcome.place else ""
    return f"{outcome.reason.splitlines()[0][: 2 * _MOST_NOTES] if outcome.reason else ''}{place}"
