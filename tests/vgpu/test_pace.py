"""Which optimizer sets the pace, for sequences of updates: each letter is an update of that optimizer."""

import pytest

from sandtable.vgpu.pace import Paces


def steps_of(updates: str, *, made: str = "") -> tuple[str, int]:
    """Return who sets the pace, and the number of steps; the optimizers of `made` exist from the start."""
    paces = Paces()
    for name in made:
        paces.admit(ord(name))
    for name in updates:
        paces.count(ord(name))
    pacemaker = paces.pacemaker()
    assert pacemaker is not None
    return chr(pacemaker), updates.count(chr(pacemaker))


@pytest.mark.parametrize(
    ("updates", "pacemaker"),
    [
        ("aaa", ("a", 3)),
        ("dgdgdg", ("g", 3)),  # a GAN: a step is both
        ("dddddgdddddgdddddg", ("g", 3)),  # five steps of the critic
        ("gdddddgdddddgddddd", ("g", 3)),
        ("dddgdgdg", ("g", 3)),  # the discriminator alone warms up
        ("aa" + 12 * "b", ("b", 12)),  # used only in the beginning
        ("abcabcabc", ("c", 3)),
    ],
)
def test_the_optimizer_that_updates_least_often_sets_the_pace(updates: str, pacemaker: tuple[str, int]):
    assert steps_of(updates) == pacemaker


def test_an_optimizer_that_was_made_is_waited_for_but_not_forever():
    paces = Paces()
    for name in "dg":
        paces.admit(ord(name))
    for _ in range(9):
        paces.count(ord("d"))
    assert paces.num_steps == 0
    paces.count(ord("d"))
    assert paces.num_steps == 10


def test_an_optimizer_that_never_updates_ends_no_step():
    assert steps_of("ddd", made="dg") == ("d", 3)


def test_an_optimizer_that_is_gone_sets_no_pace_once_others_update():
    paces = Paces()
    paces.count(1)
    paces.release(1)
    assert paces.pacemaker() == 1
    for _ in range(3):
        paces.count(2)
    assert (paces.pacemaker(), paces.num_steps) == (2, 3)


def test_a_part_of_another_optimizer_does_not_count():
    paces = Paces()
    paces.admit(1)
    paces.admit(2)
    paces.dismiss(2)
    paces.count(1)
    assert paces.num_steps == 1
