"""The figures of a run: complete, consistent with each other, and documented."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.report.conftest import MISMATCH, Rehearsal, cut_trace

from sandtable.cluster import load
from sandtable.engine import WhatIf
from sandtable.errors import ReportError
from sandtable.findings import Severity
from sandtable.report import Summary, UserInputs, load_summary, save_summary, summarise
from sandtable.report.times import PARTS

DOCS = Path(__file__).parents[2] / "docs" / "report.md"


@pytest.fixture
def data(rehearsal: Rehearsal) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(rehearsal.summary.to_dict(), allow_nan=False))
    return plain


def test_schema_and_version_come_first(data: dict[str, Any]) -> None:
    assert list(data)[:2] == ["schema", "version"]
    assert (data["schema"], data["version"]) == ("sandtable-summary", 3)


def test_every_key_is_documented(data: dict[str, Any], failed: Summary) -> None:
    documented = set(re.findall(r"`([\w.\[\]<>]+)`", DOCS.read_text()))
    keys = paths(data) | paths({"findings": json.loads(failed.to_json())["findings"]})
    missing = sorted(path for path in keys if path not in documented)
    assert not missing, f"docs/report.md must explain {missing}"


def paths(value: Any, prefix: str = "") -> set[str]:
    """Dotted names of all keys, lists as `[]`; keys that depend on the run (ranks, axes) are left out."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item, f"{prefix}[]")}
    if not isinstance(value, dict) or prefix.startswith(("capture", "what_if")):
        return {prefix}
    free = {"breakdown": "<rank>", "breakdown.<rank>.parts.communication": "<axis>", "basis": "<basis>"}
    free |= {"transactions[].algorithms": "<algorithm>"}
    found: set[str] = set()
    for key, item in value.items():
        name = free.get(prefix) or str(key)
        found |= paths(item, f"{prefix}.{name}" if prefix else name)
    return found


def test_parts_of_every_rank_add_up_to_the_step(data: dict[str, Any]) -> None:
    assert set(data["breakdown"]) == {"slowest", "median", "first", "mean"}
    for row in data["breakdown"].values():
        parts = row["parts"]
        total = sum(parts[name] for name in (*PARTS, "other") if name != "communication")
        assert total + sum(parts["communication"].values()) == pytest.approx(data["step_seconds"])
    assert data["breakdown"]["mean"]["num_ranks"] == 16


def test_recomputation_counts_as_hardware_work_but_not_as_model_work(data: dict[str, Any]) -> None:
    work = data["efficiency"]
    assert 1.2 < work["hardware_flops"] / work["model_flops"] < 1.4, "a forward is a third of forward and backward"
    assert work["hfu"] / work["mfu"] == pytest.approx(work["hardware_flops"] / work["model_flops"])
    assert work["dtype"] == "bfloat16"
    assert work["peak_flops_per_s"] == 16 * 312_000_000_000_000


def test_throughput_is_what_was_asked_for_and_nothing_is_guessed(rehearsal: Rehearsal, data: dict[str, Any]) -> None:
    assert data["throughput"]["tokens_per_s"] == pytest.approx(256 / data["step_seconds"])
    assert data["throughput"]["samples_per_s"] == pytest.approx(8 / data["step_seconds"])
    unasked = summarise(rehearsal.trace, rehearsal.timeline, rehearsal.timeline.cluster)
    assert unasked.require_timing().throughput is None
    inputs = UserInputs(samples_per_step=8)
    only_samples = (
        summarise(rehearsal.trace, rehearsal.timeline, rehearsal.timeline.cluster, inputs=inputs)
        .require_timing()
        .throughput
    )
    assert only_samples is not None
    assert only_samples.tokens_per_s is None


def test_cost_is_gpu_hours_and_money_only_with_a_price(rehearsal: Rehearsal, data: dict[str, Any]) -> None:
    cost = data["cost"]
    assert cost["gpu_hours_per_step"] == pytest.approx(16 * data["step_seconds"] / 3600)
    assert cost["usd_per_1000_steps"] == pytest.approx(2.5 * cost["gpu_hours_per_1000_steps"])


def test_memory_of_each_class_has_its_categories_and_the_capacity(rehearsal: Rehearsal, data: dict[str, Any]) -> None:
    assert len(data["memory"]) == len(rehearsal.trace.classes) == 2
    for row in data["memory"]:
        use = row["use"]
        assert sum(use["bytes_by_category"].values()) == use["allocated_bytes"]
        assert use["allocated_bytes"] + use["fragmentation_bytes"] == use["reserved_bytes"]
        assert use["capacity_bytes"] == data["cluster"]["devices"][0]["memory_bytes"]


def test_tiers_hold_all_bytes_and_name_their_fullest_links(rehearsal: Rehearsal, data: dict[str, Any]) -> None:
    loads = rehearsal.timeline.link_loads
    assert sum(tier["bytes"] for tier in data["tiers"]) == pytest.approx(loads.bytes_carried.sum())
    for tier in data["tiers"]:
        fullest = [link["utilisation"] for link in tier["busiest"]]
        assert fullest == sorted(fullest, reverse=True)
        assert tier["mean_utilisation"] <= tier["max_utilisation"] <= 1
        if fullest:
            assert fullest[0] == tier["max_utilisation"]


def test_transactions_of_all_ranks_are_in_bins_of_powers_of_two(rehearsal: Rehearsal, data: dict[str, Any]) -> None:
    expected = sum(
        row.count * len(actor.ranks)
        for actor in rehearsal.timeline.actors
        for row in rehearsal.timeline.transactions(actor.representative)
    )
    assert sum(row["count"] for row in data["transactions"]) == expected
    for row in data["transactions"]:
        for each in row["bins"]:
            assert each["to_bytes"] == 2 * each["from_bytes"]
            assert each["from_bytes"] * each["count"] <= max(each["bytes"], each["count"])
            assert each["bytes"] < each["to_bytes"] * each["count"]


def test_a_summary_that_is_saved_can_be_loaded(rehearsal: Rehearsal, tmp_path: Path) -> None:
    save_summary(rehearsal.summary, tmp_path / "summary.json")
    assert load_summary(tmp_path) == load_summary(tmp_path / "summary.json")
    assert load_summary(tmp_path) == rehearsal.summary


FINITE = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, FINITE)
SPEEDS = st.floats(min_value=0.01, max_value=100)
WHAT_IFS = st.builds(
    WhatIf,
    slow_nodes=st.dictionaries(st.integers(0, 1000), SPEEDS, max_size=3),
    link_scale=st.dictionaries(st.text(max_size=8), SPEEDS, max_size=3),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 2**40),
)
SUMMARIES = st.builds(Summary, what_if=WHAT_IFS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(SUMMARIES)
def test_any_summary_survives_json(summary: Summary) -> None:
    text = summary.to_json()
    assert Summary.from_json(text) == summary
    assert Summary.from_json(text).to_json() == text


def test_a_failed_run_survives_json_with_null_where_there_is_no_figure(failed: Summary) -> None:
    assert Summary.from_json(failed.to_json()) == failed
    data = json.loads(failed.to_json())
    assert all(data[key] is None for key in ("step_seconds", "breakdown", "efficiency", "tiers", "cost", "basis"))
    assert [finding["rule"] for finding in data["findings"]] == ["slow-input", "collective-mismatch"]
    assert data["memory"][0]["ranks"] == "0-5"


def test_names_that_are_not_unicode_survive_json(rehearsal: Rehearsal) -> None:
    summary = replace(rehearsal.summary, command=("sandtable", "run", "caf\udce9.py"))
    assert Summary.from_json(summary.to_json()) == summary


def test_a_failed_run_has_progress_memory_and_cluster_but_no_step_time(failed: Summary) -> None:
    assert failed.timing is None
    assert failed.is_failed
    with pytest.raises(ReportError, match="ranks of mesh_tp differ"):
        _ = failed.step_seconds
    assert [row.rank for row in failed.progress] == [0, 8]
    assert failed.progress[0].num_operators < failed.progress[1].num_operators
    assert failed.progress[0].stop_reason == "waits for rank 8"
    assert failed.cluster.devices[0].num_ranks == 16
    assert failed.cluster.devices[0].peak_flops_per_s == 312_000_000_000_000
    assert all(row.use.allocated_bytes > 0 for row in failed.memory)
    assert failed.effort.gpu_seconds_per_core_second is None


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_records_may_stop_anywhere(rehearsal: Rehearsal, share: float) -> None:
    trace = cut_trace(rehearsal.trace, {8: share}, {8: [8]})
    summary = summarise(trace, None, load("dgx-a100", nodes=2), findings=[MISMATCH])
    assert Summary.from_json(summary.to_json()) == summary


def test_a_run_of_which_nothing_was_captured_has_a_summary(rehearsal: Rehearsal) -> None:
    trace = cut_trace(rehearsal.trace, {}, {})
    summary = summarise(trace, None, load("dgx-a100", nodes=2), findings=[MISMATCH])
    assert (summary.progress, summary.memory) == ((), ())
    assert Summary.from_json(summary.to_json()) == summary


def test_what_the_user_gave_can_be_read_back(rehearsal: Rehearsal, tmp_path: Path) -> None:
    inputs = UserInputs(tokens_per_step=7, usd_per_gpu_hour=0.0, cluster="mine.toml")
    changes = WhatIf(slow_nodes={17: 0.8}, jitter=0.05)
    save_summary(
        summarise(rehearsal.trace, rehearsal.timeline, rehearsal.timeline.cluster, inputs=inputs, changes=changes),
        tmp_path / "x.json",
    )
    loaded = load_summary(tmp_path / "x.json")
    assert (loaded.inputs, loaded.what_if, loaded.cluster.asked) == (inputs, changes, "mine.toml")
    assert json.loads((tmp_path / "x.json").read_text())["what_if"] == {"slow_nodes": {"17": 0.8}, "jitter": 0.05}


def test_only_errors_and_missing_times_make_a_run_fail(rehearsal: Rehearsal) -> None:
    assert not rehearsal.summary.is_failed
    warning = replace(MISMATCH, severity=Severity.WARNING)
    assert not replace(rehearsal.summary, findings=(warning,)).is_failed
    assert replace(rehearsal.summary, findings=(MISMATCH,)).is_failed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "damaged"),
        ("[]", "not an object"),
        ("{}", "its schema is not sandtable-summary"),
        ('{"schema": "sandtable-summary", "version": 99}', "must be 3, but .* has 99"),
        ('{"schema": "sandtable-summary", "version": 1}', "must be 3, but .* has 1"),
        ('{"schema": "sandtable-summary", "version": 3}', "damaged"),
        ('{"schema": "sandtable-summary", "version": 3, "world_size": NaN}', "NaN is not a finite number"),
        (b"\xff\xfe", "not a text file"),
    ],
)
def test_what_is_no_summary_is_refused_with_a_remedy(tmp_path: Path, text: str | bytes, reason: str) -> None:
    (tmp_path / "summary.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ReportError, match=reason) as caught:
        load_summary(tmp_path)
    assert re.search("sandtable (run|report)", str(caught.value))


def test_a_missing_summary_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"must have a summary.json.*No such file.*sandtable run --out"):
        load_summary(tmp_path / "nowhere")


def test_a_number_that_is_not_finite_is_never_written(rehearsal: Rehearsal) -> None:
    timing = replace(rehearsal.summary.require_timing(), step_seconds=float("inf"))
    with pytest.raises(ValueError, match="Out of range float"):
        replace(rehearsal.summary, timing=timing).to_json()
