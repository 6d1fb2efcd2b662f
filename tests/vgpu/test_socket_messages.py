"""Ranks that find each other in the job's store and talk over sockets of their own."""

import os
import socket
import sys

from tests.vgpu.virtual import rehearse

from sandtable.trace import TO_THE_END
from sandtable.vgpu.key_value_store import KeyValueStore
from sandtable.vgpu.protocol import StoreOperation


def talk() -> None:
    rank = int(os.environ["RANK"])
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        store.set("port", str(listener.getsockname()[1]))
        line, _ = listener.accept()
        assert line.recv(100, socket.MSG_WAITALL) == bytes(100)
        sys.audit("sandtable.message", line, "recv", 20, 80)
    else:
        line = socket.create_connection(("127.0.0.1", int(store.get("port"))))
        sys.audit("sandtable.message", line, "send", 20, 80)
        line.sendall(bytes(100))
    sys.audit("sandtable.step")


def test_messages_over_sockets_are_in_the_trace() -> None:
    found = rehearse(talk, ranks=2)
    calls = [
        [(call.op, call.peer, call.bytes_in, call.bytes_out) for call in view.collectives()] for view in _views(found)
    ]
    assert calls == [[("recv", 1, 0, 100)], [("send", 0, 100, 0)]]
    assert found.trace.num_steps == 1
    assert found.notes(TO_THE_END)


def _views(found):
    return [found.trace.rank(rank) for rank in range(found.trace.world_size)]


def test_the_key_value_store_sets_adds_compares_and_deletes() -> None:
    store = KeyValueStore()
    assert store.get("key") is None
    store.set("key", b"1")
    assert store.add("key", 4) == 5
    assert store.compare_set("key", b"1", b"2") == b"5"
    assert store.compare_set("key", b"5", b"2") == b"2"
    assert store.carry_out(StoreOperation.GET, ("key",)) == b"2"
    assert store.carry_out(StoreOperation.COUNT, ()) == 1
    assert store.delete("key")
    assert not store.delete("key")
