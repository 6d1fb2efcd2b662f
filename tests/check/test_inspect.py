"""The rules of `check`, each on a trace that breaks it and on one that does not."""

from tests.engine.building import Script, make_trace
from tests.trace.building import PAIRS, WORLD, make_rank

from sandtable.check import ABOUT_FIGURES, RULES, inspect
from sandtable.check.relations import at_line
from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.findings import Finding, Severity
from sandtable.trace import Group, Line, Note, RunFacts, Trace

ALONE = Group("world", (0,))


def trace_with(*notes: Note, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Trace:
    """Return a trace of four equal ranks, of which `ranks` are in the class of rank 0."""
    run = RunFacts(world_size=4, gpus_per_node=4, notes=notes)
    return Trace.assemble({0: make_rank(0, notes=())}, classes={0: ranks}, groups=(WORLD, *PAIRS), run=run)


def trace_without_steps(*notes: Note) -> Trace:
    """Return a trace of one rank that made no step."""
    script = Script()
    script.op()
    return make_trace({0: script}, classes={0: [0]}, groups=(ALONE,), notes=notes)


def trace_without_gpu_work() -> Trace:
    """Return a trace of one rank that made a step without an operator on the GPU."""
    script = Script()
    script.step()
    return make_trace({0: script}, classes={0: [0]}, groups=(ALONE,))


def uneven_findings() -> tuple[Finding, ...]:
    """Return the findings about a run whose third step of four evaluates, too."""
    script = Script()
    for step in range(4):
        for _ in range(10 if step == 2 else 2):
            script.op()
        script.step()
    trace = make_trace({0: script}, classes={0: [0]}, groups=(ALONE,))
    return inspect(trace, simulate(trace, load("dgx-a100", nodes=1)))


def rules_of(trace: Trace) -> list[str]:
    return [finding.rule for finding in inspect(trace, None)]


def test_a_whole_capture_has_no_findings():
    assert rules_of(trace_with()) == []


def test_ranks_that_stop_early_are_noted_with_the_reason():
    trace = trace_with(Note("fewer steps", "rank 0 made 1 of 3 steps; it stopped for: script ended"))
    (finding,) = inspect(trace, None)
    assert (finding.rule, finding.severity, finding.ranks) == ("fewer-steps", Severity.NOTE, (0,))
    assert "1 of 3 steps" in finding.message


def test_classes_that_are_a_guess_are_a_warning():
    (finding,) = inspect(trace_with(Note("unsure classes", "the 4 ranks from rank 0 on differ")), None)
    assert (finding.rule, finding.severity) == ("unsure-classes", Severity.WARNING)
    assert "--ranks all" in finding.remedy


def test_ranks_that_were_left_out_explain_the_missing_step_time():
    (finding,) = inspect(trace_with(ranks=(0,)), None)
    assert finding.rule == "ranks-not-captured"
    assert "all 4 ranks, but the capture has only 1" in finding.message


def test_rules_about_figures_are_listed_under_the_names_that_their_findings_have():
    notes = (Note("fewer steps", "a"), Note("unsure classes", "b"))
    traces = (trace_with(*notes, ranks=(0,)), trace_without_steps(), trace_without_gpu_work())
    broken = [*uneven_findings(), *(finding for trace in traces for finding in inspect(trace, None))]
    assert {finding.rule for finding in broken} == ABOUT_FIGURES
    assert set(RULES) >= ABOUT_FIGURES


def test_a_run_without_a_step_is_an_error_that_tells_what_happened():
    skipped, none = Note("skipped updates", "GradScaler skipped 3 updates"), Note("no steps", "3 backward passes ran")
    (finding,) = inspect(trace_without_steps(Note("fewer steps", "rank 0 made 0 of 3 steps"), skipped, none), None)
    assert (finding.rule, finding.severity) == ("no-steps", Severity.ERROR)
    assert "0 of 3 steps; GradScaler skipped 3 updates; 3 backward passes ran" in finding.message
    assert "sandtable.step()" in finding.remedy
    assert finding.evidence[0].text.startswith("stopped after")


def test_steps_that_never_use_the_gpu_are_an_error():
    (finding,) = inspect(trace_without_gpu_work(), None)
    assert (finding.rule, finding.severity) == ("no-gpu-work", Severity.ERROR)
    assert "cuda" in finding.remedy


def test_unequal_steps_are_noted_with_the_line_of_the_extra_work():
    (finding,) = uneven_findings()
    assert "steps 2 to 4 take from" in finding.message
    assert "describe step 4" in finding.message
    assert finding.evidence[0].text == "runs 8 operators more in step 3 than in step 4"


def test_the_worst_finding_comes_first():
    notes = (Note("fewer steps", "rank 0 made 1 of 2"), Note("unsure classes", "a guess"))
    assert [finding.severity for finding in inspect(trace_with(*notes), None)] == [Severity.WARNING, Severity.NOTE]


def test_evidence_says_what_one_rank_does_and_what_several_do() -> None:
    place = Line("train.py", 3)
    assert str(at_line((0,), "passes its batch on", place)) == "rank 0 passes its batch on at train.py:3"
    assert str(at_line((0, 1), "passes its batch on", place)) == "ranks 0, 1 pass their batch on at train.py:3"
    assert str(at_line((0, 1), "has no batch", place)) == "ranks 0, 1 have no batch at train.py:3"
    assert str(at_line((0, 1), "updates", place)) == "ranks 0, 1 update at train.py:3"
