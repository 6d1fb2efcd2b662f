"""Settings and roles: who serves, and what is refused."""

import pytest
from tests.methods.server_tasks import make_sgd
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.server import (
    Asynchronous,
    Checkpoints,
    ParameterServer,
    Role,
    ServerClient,
    StaleSynchronous,
    serve,
)


@pytest.fixture
def ranks(monkeypatch):
    def be(rank, world, **more):
        for name in ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"RANK": rank, "WORLD_SIZE": world, **more}.items():
            monkeypatch.setenv(name, str(value))

    return be


def roles(ranks, exchange, world):
    found = []
    for rank in range(world):
        ranks(rank, world)
        role = exchange.role
        found.append(f"s{role.shard}" if role.is_server else f"w{role.worker}")
    return found


def test_the_last_ranks_serve(ranks):
    assert roles(ranks, ParameterServer(shards=2), 5) == ["w0", "w1", "w2", "s0", "s1"]


def test_the_ranks_that_serve_can_be_chosen(ranks):
    assert roles(ranks, ParameterServer(shards=2, servers=(3, 0)), 5) == ["s1", "w0", "w1", "s0", "w2"]


def test_torchrun_roles_decide(ranks):
    ranks(1, 5, ROLE_NAME="server", ROLE_RANK=1, ROLE_WORLD_SIZE=2)
    assert ParameterServer(shards=2).role.shard == 1
    ranks(2, 5, ROLE_NAME="worker", ROLE_RANK=0, ROLE_WORLD_SIZE=3)
    assert ParameterServer(shards=2).role.worker == 0


def test_a_role_with_the_wrong_number_of_ranks_is_refused(ranks):
    ranks(1, 5, ROLE_NAME="server", ROLE_RANK=1, ROLE_WORLD_SIZE=3)
    with pytest.raises(MethodError, match=r"--role server must start 2 ranks .* but started 3"):
        _ = ParameterServer(shards=2).role


def test_a_job_needs_a_worker(ranks):
    ranks(0, 2)
    with pytest.raises(MethodError, match="has 2 ranks; start 3 or more"):
        _ = ParameterServer(shards=2).role


def test_a_process_without_a_rank_is_told_what_to_do(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(MethodError, match="RANK is not set; start it with torchrun, or give worker="):
        _ = ParameterServer(shards=1).role


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParameterServer(shards=0), "shards must be 1 or more, but got 0"),
        (lambda: ParameterServer(shards=2, servers=(1,)), "servers must name one process per shard"),
        (lambda: ParameterServer(shards=2, addresses=("a:1", "a:1")), "addresses must name one process per shard"),
        (lambda: ParameterServer(timeout_s=0), "timeout_s must be above 0"),
        (lambda: StaleSynchronous(bound=-1), "bound must be 0 or more"),
        (lambda: Checkpoints(directory=".", every=0), "every must be 1 or more"),
        (
            lambda: ServerClient(nn.Linear(1, 1), sync="async", exchange=ParameterServer(), worker=0),  # type: ignore[arg-type]
            r"sync must be BulkSynchronous\(\), StaleSynchronous\(bound\) or Asynchronous\(\)",
        ),
        (
            lambda: ServerClient(
                nn.Linear(1, 1), sync=Asynchronous(), exchange=ParameterServer(addresses=("nowhere",)), worker=0
            ),
            'an address must read "host:port", but got "nowhere"',
        ),
        (
            lambda: serve(
                nn.Linear(1, 1),
                make_sgd,
                exchange=ParameterServer(),
                sync=Asynchronous(),
                role=Role(shard=1, num_workers=1),
            ),
            "shard must be one of 0 to 0, but got 1",
        ),
    ],
)
def test_bad_settings_are_refused_with_the_rule_and_the_value(make, message):
    with pytest.raises(MethodError, match=message):
        make()


def test_settings_are_values():
    assert ParameterServer(shards=2) == ParameterServer(shards=2)
    assert repr(StaleSynchronous(bound=4)) == "StaleSynchronous(bound=4)"
    assert len({Asynchronous(), Asynchronous()}) == 1
