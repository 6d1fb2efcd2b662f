"""Group order: every rank must see the same groups made in the same order, also groups of which it is no member.

`new_group` is a collective of the whole world: it numbers groups by how many were made, and ends with a barrier of all
ranks. Groups made with `use_local_synchronization`, or by splitting another group, are exempt.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from sandtable.errors import MismatchError
from sandtable.findings import Evidence, Finding, Severity, name_ranks

__all__ = ["GROUP_MISMATCH", "MadeGroup", "find_group_mismatch"]

GROUP_MISMATCH = "group-mismatch"


class MadeGroup(NamedTuple):
    """A group that a rank saw made: its members, and the line of the script."""

    ranks: tuple[int, ...]
    file: str
    line: int


def find_group_mismatch(made: Mapping[int, Sequence[MadeGroup]], *, ended: Collection[int]) -> MismatchError | None:
    """Return the first group that two captured ranks made differently.

    A rank that made fewer groups than another may make the others yet, unless it `ended`.
    """
    if len({tuple(group.ranks for group in groups) for groups in made.values()}) < 2:
        return None
    for number, groups in enumerate(zip_longest(*made.values())):
        kinds: dict[tuple[tuple[int, ...], str, int] | None, list[int]] = {}
        for rank, group in zip(made, groups, strict=True):
            if group is not None or rank in ended:
                kinds.setdefault(None if group is None else tuple(group), []).append(rank)
        if len({None if kind is None else kind[0] for kind in kinds}) > 1 and _matters(kinds):
            return _error(number, kinds)
    return None


def _matters(kinds: Mapping[tuple[tuple[int, ...], str, int] | None, list[int]]) -> bool:
    """Return whether a rank made no group, or joined one of several members: groups of one work nevertheless."""
    return None in kinds or any(
        len(kind[0]) > 1 and set(kind[0]) & set(ranks) for kind, ranks in kinds.items() if kind is not None
    )


def _error(number: int, kinds: Mapping[tuple[tuple[int, ...], str, int] | None, list[int]]) -> MismatchError:
    evidence = []
    for kind, ranks in kinds.items():
        if kind is None:
            evidence.append(Evidence(ranks=tuple(ranks), text="ended without making another group"))
            continue
        members, file, line = kind
        verb = "makes" if len(ranks) == 1 else "make"
        text = f"{verb} the group of {name_ranks(members)} as group {number}"
        evidence.append(Evidence(ranks=tuple(ranks), text=text, file=file, line=line))
    return MismatchError(
        Finding(
            rule=GROUP_MISMATCH,
            severity=Severity.ERROR,
            message=f"all ranks must make all groups in the same order, also those they are not in, but group {number} "
            "differs",
            ranks=tuple(sorted(rank for ranks in kinds.values() for rank in ranks)),
            evidence=tuple(evidence),
            remedy="call new_group on every rank with the same lists in the same order, and keep the group the rank is "
            "in; or give use_local_synchronization=True",
        )
    )
