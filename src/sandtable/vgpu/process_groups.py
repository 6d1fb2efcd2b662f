"""Process groups of a rank, announced as the script makes them.

torch's own ``new_group``, ``split_group`` and ``init_process_group`` run unchanged; the core only learns which group
comes next.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlparse

from sandtable.trace import Group
from sandtable.vgpu.compatibility import leave_out_flight_recorder
from sandtable.vgpu.group_registry import UNNAMED_GROUP
from sandtable.vgpu.rank_channel import RankChannel

__all__ = ["GroupAnnouncer"]

_STORE_PATIENCE = timedelta(seconds=5)
"""How long a rank waits for a key that only another rank could set: the rendezvous store holds its own keys only."""

_MOST_NOTED = 20_000
"""Members of groups, in all, up to which groups are noted in order."""


def _store_of(arguments: Sequence[Any]) -> Any:
    """Find the store among the arguments of torch's own function."""
    return next(argument for argument in arguments if hasattr(argument, "set_timeout"))


def _place(url: str, rank: int, world_size: int) -> tuple[int, int]:
    """Return rank and world size as torch's rendezvous finds them: given, in the URL, or in the environment."""
    query = dict(parse_qsl(urlparse(url).query))
    found: list[int] = []
    for given, name in ((rank, "rank"), (world_size, "world_size")):
        value = str(given) if given >= 0 else query.get(name, os.environ.get(name.upper(), ""))
        if not value.isdigit():
            raise ValueError(
                f"init_process_group must know its {name}, but it is not given, and {name.upper()} is not set in the "
                "environment; give it, or use a launcher that sets it: sandtable run -- torchrun ..."
            )
        found.append(int(value))
    return found[0], found[1]


class GroupAnnouncer:
    """Announces every group this rank sees made, and keeps those it belongs to, in order."""

    def __init__(self, core: ModuleType, channel: RankChannel, *, rank: int, world_size: int) -> None:
        self._core = core
        self._channel = channel
        self.rank = rank
        self.world_size = world_size
        self.before_world: Callable[[int, int], None] = lambda rank, world_size: None
        """Called with this rank and the world size, as the script gives them, before the world is made."""
        self.own: list[Group] = []
        self.made: list[tuple[tuple[int, ...], str, int]] = []
        """Groups of `new_group` with the script lines, as far as all ranks must make them alike; not of huge worlds."""
        self._num_noted = 0

    def become(self, *, rank: int, world_size: int) -> None:
        """Announce groups as this rank, before the first one."""
        self.rank, self.world_size = rank, world_size

    def add(self, ranks: Sequence[int], name: str, *, timeout_seconds: float = 0.0) -> None:
        """Announce a group that is about to be made; a timeout of 0 is unknown."""
        members = tuple(ranks)
        self._channel.announce_group(members, name)
        if self.rank in members:
            self._core.begin_group(len(self.own), list(members))
            self.own.append(Group(name=name, ranks=members))
            self._channel.timeouts.append(timeout_seconds)

    def new_line(self, name: str) -> Any:
        """Make a group of all ranks for messages that the script sends over its own sockets."""
        self.add(range(self.world_size), name)
        return self._core.ProcessGroupGloo(None, self.rank, self.world_size)

    def install(self) -> None:
        """Have torch.distributed announce every group."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import HashStore
        from torch.distributed import distributed_c10d as c10d

        make, split, new_group = c10d._new_process_group_helper, c10d.split_group, self._new_group(c10d)

        def make_group(group_size: int, group_rank: int, ranks: list[int], *rest: Any, **options: Any) -> Any:
            if not ranks:
                self.before_world(group_rank, group_size)
            name = options.get("group_desc") or UNNAMED_GROUP
            _store_of(rest).set_timeout(_STORE_PATIENCE)
            timeout = options.get("timeout")
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
            self.add(ranks or range(self.world_size), "world" if not ranks else name, timeout_seconds=seconds)
            if ranks and self.rank not in ranks:
                return c10d.GroupMember.NON_GROUP_MEMBER, None
            return make(group_size, group_rank, ranks, *rest, **options)

        def split_group(parent_pg: Any = None, split_ranks: Any = None, *rest: Any, **options: Any) -> Any:
            parent = c10d.get_process_group_ranks(parent_pg or c10d._get_default_group())
            if len(parent) == self.world_size:
                self._note_made(parent)  # all ranks must split it together, each perhaps in its own words
            mine: tuple[int, ...] = ()
            for part in split_ranks or ():
                members = [parent[place] for place in sorted(part)]
                if self.rank in members:
                    mine = tuple(members)
                self.add(members, options.get("group_desc") or "split")
            if mine:  # groups of other ranks may have been announced after ours
                self._core.begin_group(len(self.own) - 1, list(mine))
            return split(parent_pg, split_ranks, *rest, **options)

        def rendezvous(url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[tuple[Any, int, int]]:
            yield HashStore(), *_place(url, rank, world_size)

        replace: dict[str, Callable[..., Any]] = {
            "new_group": new_group,
            "_new_process_group_helper": make_group,
            "split_group": split_group,
            "rendezvous": rendezvous,
            "_store_based_barrier": lambda *_, **__: None,
        }
        for name, function in replace.items():
            setattr(c10d, name, function)
        leave_out_flight_recorder(c10d)
        dist.split_group, dist.new_group = split_group, new_group
        import torch.distributed.device_mesh as device_mesh

        device_mesh.split_group = split_group  # type: ignore[attr-defined]
        device_mesh.new_group = new_group  # type: ignore[attr-defined]

    def _new_group(self, c10d: ModuleType) -> Callable[..., Any]:
        """Return torch's `new_group` without what it does for groups of other ranks: there may be tens of thousands."""
        original = c10d.new_group

        @functools.wraps(original)
        def new_group(ranks: Any = None, *rest: Any, **options: Any) -> Any:
            is_local = rest[3] if len(rest) > 3 else options.get("use_local_synchronization")
            if not is_local:
                self._note_made(range(self.world_size) if ranks is None else ranks)
            is_own = ranks is None or self.rank in ranks
            if is_own or len(rest) > 3 or options.get("use_local_synchronization") or not c10d.is_initialized():
                return original(ranks, *rest, **options)
            members = sorted(ranks)
            if not members or members[0] < 0 or members[-1] >= self.world_size or len(set(members)) < len(members):
                return original(ranks, *rest, **options)  # which says what is wrong
            if not options.get("sort_ranks", True):
                members = list(ranks)
            world, other = c10d._world, c10d.GroupMember.NON_GROUP_MEMBER
            world.group_count += 1
            world.pg_group_ranks[other] = {member: place for place, member in enumerate(members)}
            self._channel.announce_group(members, options.get("group_desc") or UNNAMED_GROUP)
            return other

        return new_group

    def _note_made(self, ranks: Sequence[int]) -> None:
        self._num_noted += len(ranks)
        if self._num_noted <= _MOST_NOTED:
            file, line, _ = self._core.current_place()
            self.made.append((tuple(sorted(int(rank) for rank in ranks)), file, line))
