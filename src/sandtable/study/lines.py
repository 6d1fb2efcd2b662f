"""What workers print: lines that tell their progress, marked, among whatever else they say."""

import json
from typing import Any

__all__ = ["MARK", "told"]

MARK = "@study "


def told(line: str) -> dict[str, Any] | None:
    """What a marked line says; None: it is an ordinary line, or a marked one that was cut."""
    place = line.find(MARK)
    if place < 0:
        return None
    try:
        found = json.loads(line[place + len(MARK) :])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
