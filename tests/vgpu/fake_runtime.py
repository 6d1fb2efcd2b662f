"""A runtime without a GPU, real or virtual: scripts talk to the rank channel themselves, and log what they "did".

A script does `from tests.vgpu.fake_runtime import dist` and uses `dist.new_group(...)`, `dist.gather(...)` and so on.
Every call becomes a record; the digest is that of the records.
"""

import os
import sys
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from sandtable.trace import RankRecords
from sandtable.vgpu.child_processes import ChildProcesses
from sandtable.vgpu.preload import UnloadableCoreError
from sandtable.vgpu.protocol import Call
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.settings import RankSettings
from sandtable.vgpu.stop import StopCapture

LOADED: list[str] = []


def load(core_path: str) -> None:
    if core_path == "broken":
        raise OSError("no such core")
    if core_path == "unloadable":
        raise UnloadableCoreError("wrong architecture")
    LOADED.append(core_path)


@dataclass
class Dist:
    """What a script sees."""

    settings: RankSettings | None = None
    channel: RankChannel | None = None
    groups: list[tuple[int, ...]] = field(default_factory=list)
    counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    num_told_texts: int = 0
    notes: list[int] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    num_steps: int = 0

    @property
    def rank(self) -> int:
        return int(os.environ["RANK"])

    @property
    def world_size(self) -> int:
        return int(os.environ["WORLD_SIZE"])

    def do(self, number: int) -> None:
        """Some work, which makes the digest."""
        self.work.append(number)

    def init(self) -> int:
        return self.new_group(tuple(range(self.world_size)), "world")

    def new_group(self, ranks: tuple[int, ...], name: str) -> int:
        assert self.channel
        self.channel.announce_group(ranks, name)
        if self.rank not in ranks:
            return -1
        self.groups.append(ranks)
        return len(self.groups) - 1

    def gather(self, group: int, payload: bytes | None, *, op: str = "all_gather") -> list[bytes | None]:
        assert self.channel
        call = self._call(group, op, ("gather", group), num_bytes=-1)
        self._note(call)
        self.do(1000 + group)
        table, sources = self.channel.gather(call[:9], payload)
        return [table[source] for source in np.frombuffer(sources, dtype=np.int32)]

    def all_reduce(self, group: int, num_bytes: int, *, op: str = "all_reduce") -> None:
        """A large one: nothing is exchanged."""
        self._note(self._call(group, op, ("gather", group), num_bytes=num_bytes))
        self.do(num_bytes)

    def send(self, group: int, peer: int, payload: bytes | None) -> None:
        assert self.channel
        self._meet(group, peer)
        call = self._call(group, "send", ("send", group, peer), num_bytes=-1, peer=peer)
        self.channel.send(call[:9], payload)
        self.do(2000 + group)

    def receive(self, group: int, peer: int) -> bytes | None:
        assert self.channel
        self._meet(group, peer)
        self.do(3000 + group)
        call = self._call(group, "recv", ("recv", group, peer), num_bytes=-1, peer=peer)
        return self.channel.receive(call[:9])

    def take_logged_calls(self) -> tuple[list[str], bytes]:
        new, self.num_told_texts = self.texts[self.num_told_texts :], len(self.texts)
        notes, self.notes = self.notes, []
        return new, np.array(notes, dtype=np.int64).tobytes()

    def step(self) -> None:
        assert self.settings
        self.num_steps += 1
        if self.num_steps >= self.settings.num_steps:
            raise StopCapture("steps")

    def _meet(self, group: int, peer: int) -> None:
        assert self.channel
        if not self.counts["meet", group, peer]:
            self.counts["meet", group, peer] += 1
            self.channel.announce_peer(group, peer)

    def _note(self, call: Call) -> None:
        op, dtype, file = (self._number(text) for text in (call.op, call.dtype, call.file))
        nothing = self._number("")
        row = (call.group, call.seq, op, dtype, call.num_bytes, file, call.line, -1, 0, -1, nothing, nothing)
        self.notes.extend(row)

    def _number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def _call(self, group: int, op: str, key: tuple[object, ...], *, num_bytes: int, peer: int = -1) -> Call:
        seq = self.counts[key]
        self.counts[key] += 1
        frame = sys._getframe(2)
        return Call(
            group=group,
            seq=seq,
            op=op,
            dtype="uint8",
            num_bytes=num_bytes,
            file=os.path.basename(frame.f_code.co_filename),
            line=frame.f_lineno,
            peer=peer,
        )


dist = Dist()


class Capture:
    def __init__(self, settings: RankSettings) -> None:
        self._settings = settings

    @classmethod
    def start(cls, settings: RankSettings, channel: RankChannel) -> "Capture":
        dist.settings, dist.channel = settings, channel
        channel.take_logged_calls = dist.take_logged_calls
        return cls(settings)

    def attend(self, processes: ChildProcesses) -> None:
        """No torch, no hooks."""

    def before_freeze(self) -> None:
        """No torch, no parameters."""

    def become(self, settings: RankSettings) -> None:
        self._settings = dist.settings = settings

    def observations(self) -> None:
        """Return nothing: nothing is observed."""

    def copy_process(self) -> int:
        return os.fork()

    def forget_cuda(self) -> None:
        """There is none."""

    loaders: tuple[tuple[str, int, int, bool], ...] = ()
    made_groups: tuple[tuple[tuple[int, ...], str, int], ...] = ()
    is_followed = False

    def finish(self, stop_reason: str) -> RankRecords:
        size = len(dist.work)
        records = {
            "kind": np.zeros(size),
            "ref": np.zeros(size),
            "stream": np.zeros(size),
            "phase": np.zeros(size),
            "line": np.zeros(size),
            "value": np.array(dist.work, dtype=np.int64),
        }
        return RankRecords.build(
            rank=self._settings.rank,
            records=records,
            signatures=['{"op":"fake","in":[],"out":[],"args":[]}'],
            num_steps=dist.num_steps,
            stop_reason=stop_reason,
        )
