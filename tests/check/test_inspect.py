"""The rules of `check`, each on a trace that breaks it and on one that does not."""

from tests.trace.building import PAIRS, WORLD, make_rank

from sandtable.check import RULES, inspect
from sandtable.findings import Severity
from sandtable.trace import Note, RunFacts, Trace


def trace_with(*notes: Note, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Trace:
    """Return a trace of four equal ranks, of which `ranks` are in the class of rank 0."""
    run = RunFacts(world_size=4, gpus_per_node=4, notes=notes)
    return Trace.assemble({0: make_rank(0, notes=())}, classes={0: ranks}, groups=(WORLD, *PAIRS), run=run)


def rules_of(trace: Trace) -> list[str]:
    return [finding.rule for finding in inspect(trace, None)]


def test_a_whole_capture_has_no_findings():
    assert rules_of(trace_with()) == []


def test_ranks_that_stop_early_are_noted_with_the_reason():
    trace = trace_with(Note("fewer steps", "rank 0 made 1 of 3 optimizer steps; it stopped for: script ended"))
    (finding,) = inspect(trace, None)
    assert (finding.rule, finding.severity, finding.ranks) == ("fewer-steps", Severity.NOTE, (0,))
    assert "1 of 3 optimizer steps" in finding.message


def test_classes_that_are_a_guess_are_a_warning():
    (finding,) = inspect(trace_with(Note("unsure classes", "the 4 ranks from rank 0 on differ")), None)
    assert (finding.rule, finding.severity) == ("unsure-classes", Severity.WARNING)
    assert "--ranks all" in finding.remedy


def test_ranks_that_were_left_out_explain_the_missing_step_time():
    (finding,) = inspect(trace_with(ranks=(0,)), None)
    assert finding.rule == "ranks-not-captured"
    assert "all 4 ranks, but the capture has only 1" in finding.message


def test_every_rule_is_listed_under_the_name_that_its_findings_have():
    notes = (Note("fewer steps", "a"), Note("unsure classes", "b"))
    assert set(rules_of(trace_with(*notes, ranks=(0,)))) == set(RULES)


def test_the_worst_finding_comes_first():
    notes = (Note("fewer steps", "rank 0 made 1 of 2"), Note("unsure classes", "a guess"))
    assert [finding.severity for finding in inspect(trace_with(*notes), None)] == [Severity.WARNING, Severity.NOTE]
