"""Whatever arrives on its socket, a server continues; it refuses what is malformed, with the reason."""

import json
import pickle
import re
import socket
import struct

import pytest
from tests.methods.server_job import job
from tests.methods.server_tasks import make_model, run_server, run_worker, settings

from sandtable.methods.data import BulkSynchronous
from sandtable.methods.server import Asynchronous, ShardPlan
from sandtable.methods.server.message import Channel, Identity, MalformedError, MessageKind

SYNC = Asynchronous()


@pytest.fixture
def server():
    """Run a job with one server; a worker trains with it afterwards, to check that it still works."""
    with job() as running:
        process = running.start(run_server, 0, settings(1), 1, SYNC)
        yield running
        result = running.start(run_worker, 0, settings(1), 1, SYNC, 3).result()
        assert len(result["losses"]) == 4
        report = process.result()
        assert report.updates == 3
        assert report.num_refused >= 1


def connect(running):
    host, _, port = running.store.get("server/0").decode().rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def channel_to(running):
    return Channel(connect(running), limit_bytes=1 << 20, stall_s=10)


def head(kind=1, header=0, payload=0, magic=b"SAND"):
    return struct.pack("<4sB3xIQ", magic, kind, header, payload)


def hello(**changes):
    model = make_model()
    identity = Identity(
        shard=0, digest=ShardPlan.make(model, num_shards=1).digest, sync=repr(SYNC), compression=repr(None)
    )
    return {**identity.to_fields(), "worker": 7, "session": "s", **changes}


def refusal(channel):
    message = channel.receive(wait_s=10)
    assert message.kind is MessageKind.REFUSAL
    return message.fields["reason"]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "must begin with"),
        (pickle.dumps(list(range(100))), "must begin with"),
        (head(kind=99), "and a known kind"),
        (head(header=1 << 30), "announces 1073741824 and 0"),
        (head(payload=1 << 50), "may have .* of payload here"),
        (head(header=4) + b"nope", "a header must be JSON"),
        (head(header=2) + b"[]", "a header must be a JSON object"),
        (head(header=2) + b"{}", "must have a whole number 'worker'"),
        (head(kind=3, header=2) + b"{}", "the first message must be HELLO, but is PUSH"),
    ],
)
def test_a_malformed_message_is_refused(server, raw, reason):
    with connect(server) as sock:
        sock.sendall(raw)
        channel = Channel(sock, limit_bytes=1 << 20, stall_s=10)
        assert_matches(refusal(channel), reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"digest": "0" * 16}, "digest must be the same on workers and servers, but is 0000000000000000 on worker 7"),
        ({"sync": repr(BulkSynchronous())}, r"sync must be the same .* BulkSynchronous\(\) on worker 7, Asynchronous"),
        ({"compression": "TopK(0.01)"}, "compression must be the same"),
        ({"shard": 1}, "shard must be the same"),
        ({"byteorder": "big"}, "byteorder must be the same"),
    ],
)
def test_a_worker_with_another_model_or_setting_is_refused(server, changes, reason):
    channel = channel_to(server)
    channel.send(MessageKind.HELLO, hello(**changes))
    assert_matches(refusal(channel), reason)
    channel.close()


@pytest.mark.parametrize(
    ("fields", "payload", "reason"),
    [
        ({"clock": 0, "patience_s": 1, "lengths": [3]}, b"abc", "must be 652 bytes, not 3"),
        ({"clock": 0, "patience_s": 1, "lengths": [3, 4]}, b"abc", "a push must have 1 runs"),
        ({"clock": 0, "patience_s": 1, "lengths": [652], "absent": [99]}, bytes(652), "absent gradients must be of 4"),
        ({"clock": -1, "patience_s": 1, "lengths": [652]}, bytes(652), "must have a whole number 'clock'"),
        ({"clock": 5, "patience_s": 1, "lengths": [652]}, bytes(652), "push 0 of worker 7 must be next, but got 5"),
        ({"clock": 0, "patience_s": float("nan"), "lengths": [652]}, bytes(652), "must have a number 'patience_s'"),
        (
            {"clock": 0, "patience_s": 1, "lengths": [652], "options": {"lr": "fast"}},
            bytes(652),
            "an option must be a number and one of .*'lr'",
        ),
    ],
)
def test_a_malformed_push_changes_nothing(server, fields, payload, reason):
    channel = channel_to(server)
    channel.send(MessageKind.HELLO, hello())
    answer = channel.receive(wait_s=10)
    assert answer is not None
    assert answer.kind is MessageKind.ANSWER
    channel.send(MessageKind.PUSH, fields, [memoryview(payload)])
    assert_matches(refusal(channel), reason)
    channel.close()


def test_a_message_that_stops_in_the_middle_costs_only_its_connection(server):
    with connect(server) as sock:
        sock.sendall(head(header=100) + b'{"worker":')
    with connect(server) as sock:
        sock.sendall(b"garbage that is long enough")
        refusal(Channel(sock, limit_bytes=1 << 20, stall_s=10))


def test_messages_survive_the_way():
    left, right = socket.socketpair()
    sender, receiver = (Channel(end, limit_bytes=1 << 20, stall_s=5) for end in (left, right))
    for size in (0, 1, 70_000):
        payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
        sender.send(MessageKind.PUSH, {"clock": size}, [memoryview(payload[:10]), memoryview(payload[10:])])
        message = receiver.receive(wait_s=5)
        assert message is not None
        assert (message.kind, message.fields, bytes(message.payload)) == (MessageKind.PUSH, {"clock": size}, payload)
    assert sender.sent_bytes == receiver.received_bytes
    target = memoryview(bytearray(3))
    sender.send(MessageKind.ANSWER, {}, [memoryview(b"abc")])
    assert receiver.receive(wait_s=5, into=target) is not None
    assert bytes(target) == b"abc"
    sender.close()
    assert receiver.receive(wait_s=5) is None
    receiver.close()


def test_a_channel_does_not_allocate_for_an_absurd_length():
    left, right = socket.socketpair()
    left.sendall(head(header=2, payload=1 << 60) + json.dumps({}).encode())
    with pytest.raises(MalformedError, match=f"announces 2 and {1 << 60}"):
        Channel(right, limit_bytes=100, stall_s=5).receive(wait_s=5)
    left.close()
    right.close()


def assert_matches(text, pattern):
    assert re.search(pattern, text), f"{text!r} does not match {pattern!r}"
