"""Settings of Sandblaster: roles by rank, and what is refused."""

import pytest

from sandtable.errors import MethodError
from sandtable.methods.server import Sandblaster, SandblasterRole


@pytest.fixture
def ranks(monkeypatch):
    def be(rank: int, world: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))

    return be


def test_the_first_rank_coordinates_the_last_serve_and_the_others_are_replicas(ranks):
    settings, parts = Sandblaster(shards=2), []
    for rank in range(6):
        ranks(rank, 6)
        parts.append(settings.role)
    assert parts == [SandblasterRole.COORDINATOR, *[SandblasterRole.REPLICA] * 3, *[SandblasterRole.SERVER] * 2]
    assert settings.shard == 1
    ranks(2, 6)
    assert settings.replica == 2


def test_calling_for_the_wrong_part_is_an_error(ranks):
    ranks(0, 4)
    with pytest.raises(MethodError, match="this rank is the coordinator, not a replica"):
        _ = Sandblaster().replica
    with pytest.raises(MethodError, match="one of the last 1 ranks of 4, but this is rank 0"):
        _ = Sandblaster().shard


def test_too_few_ranks_are_refused(ranks):
    ranks(0, 3)
    with pytest.raises(MethodError, match=r"one rank per shard \(2\), but has 3 ranks; start 4 or more"):
        _ = Sandblaster(shards=2).role


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, "shards must be 1 or more, but got 0"),
        (
            {"shards": 2, "addresses": ("a:1", "b:2")},
            r"each shard \(2\) and of the coordinator, but got \('a:1', 'b:2'\)",
        ),
        ({"timeout_s": 0.0}, "timeout_s must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(MethodError, match=message):
        Sandblaster(**options)
