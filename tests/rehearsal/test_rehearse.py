"""One object from a script: its time, its figures, what is wrong with it, and the same again from its directory."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.rehearsal.scripts import DEADLOCK, HEAD, RAISES, STOPS, TRAIN

import sandtable
from sandtable import CaptureStore, Launcher, LaunchOptions, Rehearsal, UserInputs, WhatIf
from sandtable.errors import (
    ClusterError,
    LaunchError,
    MismatchError,
    ReportError,
    SandtableError,
    ScriptError,
    WhatIfError,
)
from sandtable.events import Event, Failed, Finished, Priced, RankCaptured, Started

Rehearse = Callable[..., Rehearsal]


def test_a_rehearsal_has_a_time_a_summary_a_trace_and_a_timeline(rehearse_text: Rehearse):
    run = rehearse_text(TRAIN, inputs=UserInputs(tokens_per_step=1000))
    assert run.error is None
    assert run.step_seconds == run.summary.step_seconds == run.timeline.step_ns / 1e9
    assert run.trace.world_size == run.summary.world_size == 2
    assert run.summary.timing is not None
    assert run.summary.timing.throughput is not None
    assert run.summary.timing.throughput.tokens_per_s == pytest.approx(1000 / run.step_seconds)


def test_another_cluster_and_what_ifs_need_no_new_capture(rehearse_text: Rehearse):
    run = rehearse_text(TRAIN)
    elsewhere = run.on("dgx-h100")
    slow = run.what_if(slow_nodes={0: 0.5}, link_scale={"intra": 0.25})
    assert elsewhere.trace is run.trace
    assert slow.trace is run.trace
    assert elsewhere.cluster.name == "dgx-h100"
    assert elsewhere.step_seconds != run.step_seconds
    assert slow.step_seconds > run.step_seconds
    assert slow.changes == WhatIf(slow_nodes={0: 0.5}, link_scale={"intra": 0.25})
    assert slow.what_if(slow_nodes={}).changes == WhatIf(link_scale={"intra": 0.25})
    assert slow.what_if(slow_nodes={}, link_scale={}).step_seconds == run.step_seconds


def test_a_saved_rehearsal_loads_as_the_same(rehearse_text: Rehearse, tmp_path: Path):
    run = rehearse_text(TRAIN, inputs=UserInputs(samples_per_step=16, usd_per_gpu_hour=2.0)).what_if(
        jitter=0.05, seed=3
    )
    run.save(tmp_path / "out")
    again = sandtable.load(tmp_path / "out")
    assert again.summary == run.summary
    assert (again.inputs, again.changes, again.findings) == (run.inputs, run.changes, run.findings)
    assert again.cluster == run.cluster
    assert again.timeline.step_ns == run.timeline.step_ns
    assert again.on("dgx-h100").step_seconds == run.on("dgx-h100").step_seconds


def test_with_out_the_directory_holds_the_rehearsal(rehearse_text: Rehearse, tmp_path: Path):
    out = tmp_path / "out"
    run = rehearse_text(TRAIN, out=out)
    assert {path.name for path in out.iterdir()} == {"trace.sandtable", "summary.json", "report.html", "trace.json.gz"}
    assert sandtable.load(out).summary == run.summary


@pytest.mark.parametrize("rule", STOPS)
def test_a_run_that_fails_is_a_rehearsal_with_findings_and_the_way_it_got(
    rule: str, rehearse_text: Rehearse, tmp_path: Path
):
    out = tmp_path / "out"
    run = rehearse_text(STOPS[rule], out=out)
    for opened in (run, sandtable.load(out)):
        assert isinstance(opened.error, SandtableError)
        finding = opened.findings[0]
        assert (finding.rule, finding.severity) == (rule, "error")
        assert any(evidence.file.endswith("train.py") and evidence.line for evidence in finding.evidence)
        assert {progress.rank for progress in opened.summary.progress} <= {0, 1}
        assert opened.summary.progress
        with pytest.raises(SandtableError):
            _ = opened.step_seconds
        with pytest.raises(SandtableError):
            _ = opened.timeline
    assert {path.name for path in out.iterdir()} == {"trace.sandtable", "summary.json", "report.html"}
    assert rule in (out / "report.html").read_text()


def test_errors_keep_their_kind(rehearse_text: Rehearse):
    assert isinstance(rehearse_text(DEADLOCK).error, MismatchError)
    failed = rehearse_text(RAISES).error
    assert isinstance(failed, ScriptError)
    assert failed.rank == 1
    assert "ValueError: bad learning rate" in failed.traceback


@pytest.mark.parametrize("first", [TRAIN, DEADLOCK])
@pytest.mark.parametrize("second", [TRAIN, RAISES])
def test_a_later_run_leaves_nothing_of_the_earlier_one(
    first: str, second: str, rehearse_text: Rehearse, tmp_path: Path
):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("the user's own")
    rehearse_text(first, "first", out=out, options=None)
    run = rehearse_text(second, "second", out=out)
    again = sandtable.load(out)
    assert again.trace.command[-1] == "second"
    assert again.findings == run.findings
    assert (out / "trace.json.gz").exists() == run.has_time
    assert (out / "notes.txt").read_text() == "the user's own"


def test_what_cannot_work_is_refused_before_the_capture(rehearse_text: Rehearse, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="writ"):
        rehearse_text(TRAIN, out=tmp_path / "file" / "out")
    with pytest.raises(WhatIfError, match="one of the 1 node"):
        rehearse_text(TRAIN, what_if=WhatIf(slow_nodes={7: 0.5}))
    with pytest.raises(SandtableError, match="inner"):
        rehearse_text(TRAIN, what_if=WhatIf(link_scale={"inner": 0.5}))
    with pytest.raises(LaunchError, match="does not exist"):
        sandtable.rehearse("nowhere.py")


def test_events_tell_the_story_in_order(launcher: Launcher, rehearse_text: Rehearse):
    events: list[Event] = []
    options = LaunchOptions(ranks_per_node=2, launcher=launcher, listen=events.append)
    run = rehearse_text(TRAIN, options=options)
    assert isinstance(events[0], Started)
    assert any(isinstance(event, RankCaptured) and event.rank == 0 for event in events)
    assert events[-2:] == [Priced(step_seconds=run.step_seconds), Finished(findings=run.findings)]
    events.clear()
    run = rehearse_text(RAISES, options=options)
    assert isinstance(events[-1], Failed)
    assert events[-1].findings == run.findings


def test_some_ranks_alone_are_captured_without_a_time(launcher: Launcher, rehearse_text: Rehearse, tmp_path: Path):
    options = LaunchOptions(ranks_per_node=4, ranks=(0, 3), launcher=launcher)
    run = rehearse_text("import torch\ntorch.ones(3).cuda() + 1\n", options=options, out=tmp_path / "out")
    assert (run.error, run.has_time) == (None, False)
    assert "ranks-not-captured" in {finding.rule for finding in run.findings}
    with pytest.raises(ReportError, match="captured whole"):
        _ = run.step_seconds


def test_the_store_captures_once_and_notices_changes(launcher: Launcher, rehearse_text: Rehearse, tmp_path: Path):
    events: list[Event] = []
    store = CaptureStore(tmp_path / "store")
    options = LaunchOptions(ranks_per_node=2, launcher=launcher, store=store, listen=events.append)

    def captured() -> bool:
        started = any(isinstance(event, Started) for event in events)
        events.clear()
        return started

    (tmp_path / "layers.py").write_text("WIDTH = 16\n")
    text = TRAIN.replace("import os", "import os\nfrom layers import WIDTH")
    first = rehearse_text(text, options=options)
    assert captured()
    assert rehearse_text(text, options=options).step_seconds == first.step_seconds
    assert not captured()
    assert rehearse_text(text, options=options, cluster="dgx-h100").has_time
    assert captured()  # another device: kernels may differ
    assert rehearse_text(text + "# said otherwise\n", options=options).has_time
    assert not captured()
    (tmp_path / "layers.py").write_text("WIDTH = 32\n")
    rehearse_text(text, options=options)
    assert captured()
    rehearse_text(text, "--flag", options=options)
    assert captured()


def test_the_summary_file_is_json_with_the_findings(rehearse_text: Rehearse, tmp_path: Path):
    rehearse_text(DEADLOCK, out=tmp_path / "out")
    data = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert data["step_seconds"] is None
    assert data["findings"][0]["rule"] == "deadlock-cycle"
    assert [(row["rank"], row["stop_reason"]) for row in data["progress"]] == [(0, "deadlock")]  # both did the same


@pytest.mark.parametrize("text", ["import os\nos._exit(7)\n", "import os\nos.kill(os.getpid(), 9)\n", "x = (\n"])
def test_a_rank_that_leaves_without_a_word_leaves_findings_too(text: str, rehearse_text: Rehearse, tmp_path: Path):
    run = rehearse_text(text, out=tmp_path / "out")
    for opened in (run, sandtable.load(tmp_path / "out")):
        assert opened.findings[0].rule == "script-error"
        assert isinstance(opened.error, SandtableError)
    assert "script-error" in (tmp_path / "out" / "report.html").read_text()


def test_a_cluster_object_may_be_resized(launcher: Launcher, rehearse_text: Rehearse):
    cluster = sandtable.load_cluster("dgx-a100", nodes=4)
    run = rehearse_text(TRAIN, cluster=cluster, nodes=2)
    assert (run.cluster.num_nodes, run.trace.world_size) == (2, 4)
    assert run.on(sandtable.load_cluster("dgx-h100"), nodes=2).cluster.num_nodes == 2


def test_a_failed_run_has_no_time_on_another_cluster_either(rehearse_text: Rehearse, tmp_path: Path):
    run = rehearse_text(HEAD + "torch.ones(4).cuda() + 1\nraise ValueError('all ranks alike')\n", out=tmp_path / "out")
    for opened in (run, sandtable.load(tmp_path / "out"), sandtable.load(tmp_path / "out" / "trace.sandtable")):
        for other in (opened, opened.on("dgx-h100"), opened.what_if(jitter=0.1)):
            assert not other.has_time
            assert other.findings[0].severity == "error"
            with pytest.raises(SandtableError, match="failed"):
                _ = other.step_seconds


def test_saving_leaves_nothing_of_the_run_that_was_there(rehearse_text: Rehearse, tmp_path: Path):
    rehearse_text(TRAIN).save(tmp_path / "out", chakra=True)
    rehearse_text(RAISES).save(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"trace.sandtable", "summary.json", "report.html"}


def test_a_run_on_a_cluster_made_in_python_loads_with_it(rehearse_text: Rehearse, tmp_path: Path):
    cluster = dataclasses.replace(sandtable.load_cluster("dgx-a100", nodes=1), name="mine")
    run = rehearse_text(TRAIN, cluster=cluster, out=tmp_path / "out")
    with pytest.raises(ClusterError, match=r"'mine'.*cluster=") as refused:
        sandtable.load(tmp_path / "out")
    assert "--cluster" in str(refused.value)
    assert sandtable.load(tmp_path / "out", cluster=cluster).step_seconds == run.step_seconds
    assert sandtable.load(tmp_path / "out", cluster="dgx-h100").cluster.name == "dgx-h100"


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"nodes": "2"}, "nodes must be a whole number, but got '2'"),
        ({"nodes": 1.5}, "nodes must be a whole number"),
        ({"steps": "2"}, "steps must be a whole number"),
        ({"inputs": {"tokens_per_step": 1}}, "inputs must be UserInputs"),
        ({"what_if": {"jitter": 0.1}}, "what_if must be a WhatIf"),
        ({"options": {"ranks": "all"}}, "options must be LaunchOptions"),
        ({"options": LaunchOptions(ranks="some")}, "ranks must be auto, all"),  # type: ignore[arg-type]
        ({"options": LaunchOptions(ranks_per_node=0)}, "nproc_per_node must be at least 1|world_size"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused_in_words(settings: dict[str, object], rule: str, tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    with pytest.raises(LaunchError, match=rule):
        sandtable.rehearse(tmp_path / "train.py", **settings)  # type: ignore[arg-type]


def test_other_values_of_the_wrong_kind_are_refused_in_words(tmp_path: Path):
    with pytest.raises(LaunchError, match="must be a path"):
        sandtable.rehearse(None)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="directory without __main__"):
        sandtable.rehearse(tmp_path)
    with pytest.raises(ReportError, match="tokens_per_step must be"):
        UserInputs(tokens_per_step=-5)
    with pytest.raises(WhatIfError, match="slow node"):
        WhatIf(slow_nodes={"a": 0.5})  # type: ignore[dict-item]
    with pytest.raises(WhatIfError, match="jitter"):
        WhatIf(jitter="much")  # type: ignore[arg-type]
    with pytest.raises(ReportError, match="list of directories"):
        sandtable.compare([], tmp_path / "page.html")
    with pytest.raises(ReportError, match="list of directories"):
        sandtable.compare("out", tmp_path / "page.html")


def test_the_store_notices_changes_to_modules_and_scripts_that_do_not_parse(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    store = CaptureStore(tmp_path / "store")
    options = LaunchOptions(ranks_per_node=1, launcher=launcher, store=store, is_module=True)
    for count in (1, 2):
        (tmp_path / "mymodule.py").write_text(
            f"import sandtable, torch\ntorch.ones({count}).cuda() + 1\nsandtable.step()\n"
        )
        assert sandtable.rehearse("mymodule", options=options).error is None
        assert len(list((tmp_path / "store").iterdir())) == count
    (tmp_path / "mymodule.py").write_text("def (:\n")
    assert isinstance(sandtable.rehearse("mymodule", options=options).error, ScriptError)
