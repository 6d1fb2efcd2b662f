"""Connections that break, come back or are replaced: what a server remembers of a worker."""

import pytest
from tests.methods.server_job import job
from tests.methods.server_tasks import (
    make_broken,
    make_model,
    make_plain_sgd,
    run_cut_off_worker,
    run_server,
    run_worker,
    settings,
)
from tests.methods.test_server_protocol import connect

from sandtable.methods.data import BulkSynchronous
from sandtable.methods.server import Asynchronous, ShardPlan
from sandtable.methods.server.message import Channel, Identity, MessageKind

GRADIENT = bytes(652)


class Speaker:
    """A worker that says what a test wants it to say."""

    def __init__(self, running, sync, worker, session="a", **fields):
        self._channel = Channel(connect(running), limit_bytes=1 << 20, stall_s=10)
        digest = ShardPlan.make(make_model(), num_shards=1).digest
        identity = Identity(shard=0, digest=digest, sync=repr(sync), compression=repr(None))
        self.welcome = self.ask(MessageKind.HELLO, **identity.to_fields(), worker=worker, session=session, **fields)

    def send(self, kind, payload=b"", **fields):
        self._channel.send(kind, fields, [memoryview(payload)])

    def ask(self, kind, payload=b"", **fields):
        self.send(kind, payload, **fields)
        return self.hear()

    def hear(self):
        message = self._channel.receive(wait_s=10)
        assert message is not None
        return message.fields

    def push(self, clock):
        self.send(MessageKind.PUSH, GRADIENT, clock=clock, patience_s=5, lengths=[len(GRADIENT)])

    def close(self):
        self._channel.close()


def test_a_push_that_is_repeated_is_applied_once():
    sync = Asynchronous()
    with job() as running:
        server = running.start(run_server, 0, settings(1), 1, sync)
        first = Speaker(running, sync, 0)
        first.push(0)
        assert first.hear()["version"] == 1
        first.close()
        again = Speaker(running, sync, 0, clock=0)
        assert again.welcome["clock"] == 1
        again.push(0)
        assert again.hear()["version"] == 1
        again.push(1)
        assert again.hear()["version"] == 2
        again.ask(MessageKind.DONE)
        again.close()
        assert server.result().updates == 2


def test_a_push_for_a_round_that_is_over_is_late():
    sync = BulkSynchronous()
    with job() as running:
        server = running.start(run_server, 0, settings(1), 2, sync)
        steady, cut_off = Speaker(running, sync, 0), Speaker(running, sync, 1)
        cut_off.close()
        steady.push(0)
        assert steady.hear()["version"] == 1
        back = Speaker(running, sync, 1, clock=0)
        back.push(0)
        assert back.hear() == {"late": True, "clock": 1}
        assert back.ask(MessageKind.JOIN, clock=1) == {"clock": 1}
        steady.push(1)
        back.push(1)
        assert steady.hear()["version"] == back.hear()["version"] == 2
        for speaker in (steady, back):
            speaker.ask(MessageKind.DONE)
            speaker.close()
        report = server.result()
    assert (report.updates, report.num_late) == (2, 1)


def test_a_worker_that_was_cut_off_finds_its_way_back():
    exchange, sync = settings(2), BulkSynchronous()
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 2, sync, make_plain_sgd) for shard in range(2)]
        steady = running.start(run_worker, 0, exchange, 2, sync, 30, 0.0, None, (15, "back", 1))
        cut_off = running.start(run_cut_off_worker, exchange, sync)
        counters = cut_off.result()
        steady.result()
        assert all(server.result().done == (0, 1) for server in servers)
    assert counters.num_late == 1
    assert counters.num_reconnections == 2


def test_of_two_processes_with_one_number_the_newer_stays():
    sync = Asynchronous()
    with job() as running:
        server = running.start(run_server, 0, settings(1), 1, sync)
        Speaker(running, sync, 0, session="older")
        newer = Speaker(running, sync, 0, session="newer")
        refused = Speaker(running, sync, 0, session="older", clock=0)
        assert "another process has replaced worker 0" in refused.welcome["reason"]
        newer.push(0)
        assert newer.hear()["version"] == 1
        newer.ask(MessageKind.DONE)
        newer.close()
        server.result()


@pytest.mark.parametrize("sync", [Asynchronous(), BulkSynchronous()])
def test_an_optimizer_that_fails_ends_the_server_and_is_told_to_the_worker(sync):
    with job() as running:
        server = running.start(run_server, 0, settings(1), 1, sync, make_broken)
        error = running.start(run_worker, 0, settings(1), 1, sync, 3).error()
        assert "RuntimeError: this optimizer is broken" in server.error()
    assert "the server of shard 0 (127.0.0.1:" in error
    assert "RuntimeError: this optimizer is broken" in error
