"""Messages: sends and receives of captured ranks, held against each other.

The n-th send of a rank to another is received by the n-th receive there, of the same group and tag. Large messages
carry no values in a rehearsal, so nobody waits for them: only the logs show those of different sizes, or without a
counterpart.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from sandtable.findings import Evidence, Finding, Severity
from sandtable.vgpu.call_logs import P2P_MISMATCH, CallLog, CallTable, MeetingError, describe_call
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.protocol import Call

__all__ = ["find_message_mismatch", "message_mismatch"]

_LIBRARY_TAGS = 1 << 30
"""Tags from here on are not the script's."""

_MOST_MESSAGES = 200_000

Channel = tuple[int, int, int, int]
"""Group, sender, receiver and tag."""


def find_message_mismatch(
    registry: GroupRegistry, logs: Mapping[int, CallLog], *, ended: Collection[int]
) -> MeetingError | None:
    """Return the first message whose sender and receiver disagree; of ranks that `ended` the script, none may lack."""
    table = CallTable.of(registry, logs).messages()
    if len(table.rows) > _MOST_MESSAGES:
        return None
    sent: dict[Channel, list[tuple[int, Call]]] = {}
    received: dict[Channel, list[tuple[int, Call]]] = {}
    for index in range(len(table.rows)):
        call, rank, entry = table.call(index), int(table.rank[index]), int(table.entry[index])
        if call.tag >= _LIBRARY_TAGS:
            continue
        if call.op == "send":
            sent.setdefault((entry, rank, call.peer, call.tag), []).append((int(table.row[index]), call))
        else:
            received.setdefault((entry, call.peer, rank, call.tag), []).append((int(table.row[index]), call))
    failures = list(_failures(sent, received, is_known=lambda rank: rank in logs, ended=ended))
    return min(failures, key=lambda failure: failure[0])[1] if failures else None


def message_mismatch(sender: tuple[int, Call], receiver: tuple[int, Call]) -> MeetingError:
    """Return the error for a message that is not what its receiver expects."""
    return _error(
        "sender and receiver of a message must agree on its size and type, but they do not",
        [sender, receiver],
        [_evidence(*sender, describe_call(sender[1])), _evidence(*receiver, describe_call(receiver[1]))],
    )


def _failures(
    sent: Mapping[Channel, list[tuple[int, Call]]],
    received: Mapping[Channel, list[tuple[int, Call]]],
    *,
    is_known: Callable[[int], bool],
    ended: Collection[int],
) -> Iterator[tuple[int, MeetingError]]:
    for channel in sent.keys() | received.keys():
        _, sender, receiver, _ = channel
        if not (is_known(sender) and is_known(receiver)):
            continue
        sends, receives = sent.get(channel, []), received.get(channel, [])
        for (row, send), (_, receive) in zip(sends, receives, strict=False):
            is_sized = send.num_bytes >= 0 and receive.num_bytes >= 0  # (messages between hosts are not)
            if send.dtype != receive.dtype or (is_sized and send.num_bytes != receive.num_bytes):
                yield row, message_mismatch((sender, send), (receiver, receive))
                break
        if len(sends) > len(receives) and receiver in ended:
            row, call = sends[len(receives)]
            yield row, _lonely(sender, receiver, call, len(receives))
        elif len(receives) > len(sends) and sender in ended:
            row, call = receives[len(sends)]
            yield row, _lonely(receiver, sender, call, len(sends))


def _lonely(rank: int, other: int, call: Call, count: int) -> MeetingError:
    """Return the error for a message that the other rank, which has ended, never sent or received."""
    verb = "received" if call.op == "send" else "sent"
    text = f"{verb} {count or 'no'} message{'s' * (count != 1)} of this kind and ended"
    return _error(
        f"every send must have its receive, but rank {other} never {verb} the message that rank {rank} waits for",
        [(rank, call), (other, call)],
        [_evidence(rank, call, f"waits in {describe_call(call)}"), Evidence(ranks=(other,), text=text)],
    )


def _evidence(rank: int, call: Call, text: str) -> Evidence:
    words = text if text.startswith("waits") else f"calls {text}"
    return Evidence(ranks=(rank,), text=words, file=call.file, line=call.line)


def _error(message: str, parties: list[tuple[int, Call]], evidence: list[Evidence]) -> MeetingError:
    return MeetingError(
        Finding(
            rule=P2P_MISMATCH,
            severity=Severity.ERROR,
            message=message,
            ranks=tuple(sorted(rank for rank, _ in parties)),
            evidence=tuple(evidence),
            remedy="match every receive with one send of its peer, with the same group, tag, type and size",
        )
    )
