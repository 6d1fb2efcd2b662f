"""The figures of a run: complete, consistent with each other, and documented."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import Rehearsal

from sandtable.errors import ReportError
from sandtable.report.summary import Asked, load_summary, save_summary, summarise_run
from sandtable.report.times import PARTS

DOCS = Path(__file__).parents[2] / "docs" / "report.md"


@pytest.fixture
def data(rehearsal: Rehearsal) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(rehearsal.summary.to_dict(), allow_nan=False))
    return plain


def test_schema_and_version_come_first(data: dict[str, Any]) -> None:
    assert list(data)[:2] == ["schema", "version"]
    assert (data["schema"], data["version"]) == ("sandtable-summary", 1)


def test_every_key_is_documented(data: dict[str, Any]) -> None:
    documented = set(re.findall(r"`([\w.\[\]<>]+)`", DOCS.read_text()))
    missing = sorted(path for path in paths(data) if path not in documented)
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
    unasked = summarise_run(rehearsal.trace, rehearsal.timeline)
    assert unasked.throughput is None
    only_samples = summarise_run(rehearsal.trace, rehearsal.timeline, Asked(samples_per_step=8)).throughput
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
    assert load_summary(tmp_path)["world_size"] == 16


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "sandtable-summary", "version": 99}'])
def test_what_is_no_summary_is_refused_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ReportError, match=r"sandtable (run|report)"):
        load_summary(tmp_path)
