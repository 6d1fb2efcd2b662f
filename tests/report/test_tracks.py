"""Tracks: every moment of work is drawn, in no more spans than asked for."""

from typing import Any

import numpy as np
import pytest
from tests.report.conftest import Rehearsal

from sandtable.errors import ReportError
from sandtable.report.shown_ranks import choose_ranks
from sandtable.report.tracks import Track, tracks_of


def moments(track: Track) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Starts and ends of a track's spans."""
    ends = np.cumsum(np.array(track.gap) + np.array(track.length))
    return ends - np.array(track.length), ends


def test_all_spans_are_there_when_they_fit(rehearsal: Rehearsal) -> None:
    shown = tracks_of(rehearsal.timeline, [0, 8])
    assert shown.num_drawn == shown.num_spans
    spans = rehearsal.timeline.span_columns(0)
    for track in shown.ranks[0].tracks:
        mine = spans.stream == track.stream
        starts, ends = moments(track)
        assert np.array_equal(starts + rehearsal.timeline.step_start_ns, spans.start_ns[mine])
        assert np.array_equal(ends + rehearsal.timeline.step_start_ns, spans.end_ns[mine])
        names = [shown.names[shown.kinds[kind][0]] for kind in track.kind]
        assert names == [spans.names[k] for k in spans.name[mine]]


@pytest.mark.parametrize("limit", [400, 120, 30, 12])
def test_joined_spans_keep_counts_bytes_and_ends_and_do_not_overlap(rehearsal: Rehearsal, limit: int) -> None:
    shown = tracks_of(rehearsal.timeline, [0], max_spans=limit)
    spans = rehearsal.timeline.span_columns(0)
    assert shown.num_drawn <= max(limit, len(shown.ranks[0].tracks))
    assert shown.num_spans == len(spans)
    kinds = [shown.kinds[kind] for track in shown.ranks[0].tracks for kind in track.kind]
    assert sum(kind[7] for kind in kinds) == len(spans)
    assert sum(kind[5] for kind in kinds) == spans.bytes.sum()
    for track in shown.ranks[0].tracks:
        starts, ends = moments(track)
        assert (starts[1:] >= ends[:-1]).all()
        mine = spans.stream == track.stream
        assert ends[-1] + rehearsal.timeline.step_start_ns == spans.end_ns[mine].max()


def test_compute_is_drawn_above_communication(rehearsal: Rehearsal) -> None:
    shown = tracks_of(rehearsal.timeline, [0])
    first = shown.ranks[0].tracks[0]
    assert any(shown.kinds[kind][1] == 0 for kind in first.kind)


def test_first_slowest_last_and_one_of_each_stage_are_chosen_once(rehearsal: Rehearsal) -> None:
    chosen = choose_ranks(rehearsal.timeline)
    actors = [rehearsal.timeline.actor_of(rank).representative for rank in chosen]
    assert 0 in chosen
    assert sorted(actors) == [0, 8], "two stages, whose ranks are all alike"


def test_ranks_asked_for_are_chosen_and_must_exist(rehearsal: Rehearsal) -> None:
    assert choose_ranks(rehearsal.timeline, wanted=[3, 0, 3]) == (3, 0)
    with pytest.raises(ReportError, match="between 0 and 15, but got 16"):
        choose_ranks(rehearsal.timeline, wanted=[16])
