"""Which session gets which portion, and which answer counts."""

import pytest

from sandtable.errors import MethodError
from sandtable.methods.server import WorkQueue
from sandtable.methods.server.distbelief.work_queue import Portion


def begun(num_samples: int, size: int) -> WorkQueue:
    portions = WorkQueue(num_samples=num_samples, size=size)
    portions.begin()
    return portions


def test_portions_cover_the_batch_in_order_and_the_last_may_be_shorter():
    portions = begun(10, 4)
    assert [portions.next(str(session), now=0.0) for session in range(3)] == [
        Portion(0, 0, 4),
        Portion(1, 4, 8),
        Portion(2, 8, 10),
    ]


def test_when_none_is_left_the_one_that_is_out_longest_is_given_out_a_second_time():
    portions = begun(3, 1)
    first = [portions.next(session, now=0.0) for session in "abc"]
    assert portions.num_twice == 0
    assert portions.next("d", now=0.0) == first[0]
    assert portions.next("e", now=0.0) == first[1]
    assert portions.num_twice == 2


def test_a_portion_that_is_out_no_longer_than_usual_is_not_copied():
    portions = begun(3, 1)
    for session in "abc":
        portions.next(session, now=0.0)
    portions.count(0, "a", 1.0, now=4.0)
    portions.count(1, "b", 1.0, now=6.0)
    # Two portions took 4 and 6 seconds, so the third is late after 5.
    assert portions.next_copy_at == 5.0
    assert portions.next("a", now=4.9) is None
    assert portions.next("a", now=5.0) == Portion(2, 2, 3)
    assert portions.next_copy_at is None


def test_a_copy_is_timed_from_when_it_was_given_out():
    portions = begun(1, 1)
    portions.next("a", now=0.0)
    portions.next("b", now=10.0)
    portions.count(0, "b", 1.0, now=12.0)
    portions.begin()
    portions.next("a", now=20.0)
    assert portions.next_copy_at == 22.0


def test_an_answer_of_somebody_who_does_not_work_on_it_any_more_does_not_count():
    portions = begun(1, 1)
    portions.next("a", now=0.0)
    portions.release("a")
    portions.next("b", now=0.0)
    assert not portions.count(0, "a", 1.0, now=1.0)


def test_none_is_given_out_three_times():
    portions = begun(1, 1)
    assert portions.next("a", now=0.0) == portions.next("b", now=0.0)
    assert portions.next("c", now=0.0) is None


def test_the_first_answer_counts_and_only_that():
    portions = begun(1, 1)
    portions.next("a", now=0.0)
    portions.next("b", now=0.0)
    assert portions.count(0, "b", 2.5, now=1.0)
    assert not portions.count(0, "a", 99.0, now=1.0)
    assert portions.are_complete
    assert portions.loss == 2.5


def test_what_a_lost_replica_held_is_given_out_again_before_anything_else():
    portions = begun(3, 1)
    lost = portions.next("a", now=0.0)
    portions.next("b", now=0.0)
    portions.release("a")
    assert portions.num_given_back == 1
    assert portions.next("c", now=0.0) == lost


def test_a_portion_that_another_holds_too_is_not_given_back():
    portions = begun(1, 1)
    portions.next("a", now=0.0)
    portions.next("b", now=0.0)
    portions.release("a")
    assert portions.num_given_back == 0
    assert portions.outstanding == {0: ("b",)}
    # There is room for a second session again.
    assert portions.next("c", now=0.0) == Portion(0, 0, 1)


def test_the_loss_does_not_depend_on_who_was_first():
    losses = [1e16, 1.0, -1e16, 1.0]
    totals = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        portions = begun(4, 1)
        for session in "abcd":
            portions.next(session, now=0.0)
        for number in order:
            portions.count(number, "abcd"[number], losses[number], now=1.0)
        totals.append(portions.loss)
    assert totals == [2.0, 2.0]


def test_a_new_evaluation_begins_with_all_portions():
    portions = begun(2, 1)
    portions.next("a", now=0.0)
    portions.count(0, "a", 1.0, now=1.0)
    portions.begin()
    assert not portions.are_complete
    assert not portions.count(0, "a", 1.0, now=1.0)
    assert portions.next("a", now=0.0) == Portion(0, 0, 1)


def test_an_empty_portion_is_refused():
    with pytest.raises(MethodError, match=r"num_samples and portion_size must be 1 or more, but got \(10, 0\)"):
        WorkQueue(num_samples=10, size=0)
