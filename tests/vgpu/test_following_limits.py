"""Scripts are followed after the captured steps where that is quick."""

import pytest

from sandtable.vgpu.following import Follower


@pytest.mark.parametrize(
    ("world_size", "step_seconds", "is_followed"),
    [(8, 0.4, True), (8, 0.6, False), (3072, 0.4, False), (3072, 0.05, True)],
)
def test_steps_are_followed_if_they_are_quick_and_quicker_where_most_ranks_are_not_run(
    world_size: int, step_seconds: float, is_followed: bool
) -> None:
    assert Follower(seconds=5, num_epochs=0, world_size=world_size).is_worthwhile(step_seconds) is is_followed
    assert Follower(seconds=5, num_epochs=1, world_size=world_size).is_worthwhile(step_seconds)
    assert not Follower(seconds=0, num_epochs=0, world_size=world_size).is_worthwhile(step_seconds)
