"""What if: a slow node, thinner links, noise. Changes to a rehearsal that need no new capture."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandtable.errors import WhatIfError

__all__ = ["WhatIf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Changes to a rehearsal.

    `slow_nodes` gives the speed of nodes that differ (17: 0.8 is a fifth slower), `link_scale` factors on the bandwidth
    of links (intra, inter, or a tier's name), `jitter` the standard deviation of the time of every run of operators,
    drawn from `seed`.
    """

    slow_nodes: Mapping[int, float] = field(default_factory=dict)
    link_scale: Mapping[str, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for node, speed in self.slow_nodes.items():
            if not isinstance(node, int) or node < 0 or not _is_number(speed) or not 0 < speed <= 100:
                raise WhatIfError(
                    f"a slow node must be number=speed, with a number from 0 and a speed above 0, but got "
                    f"{node}={speed}; for a node at 80 % of its speed: --slow-node "
                    f"{max(node, 0) if isinstance(node, int) else 0}=0.8"
                )
        for name, factor in self.link_scale.items():
            if not _is_number(factor) or not 0 < factor <= 1e6:
                raise WhatIfError(
                    f"the factor on links must be above 0, but got {name}={factor}; for a quarter: --link-scale "
                    f"{name}=0.25"
                )
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise WhatIfError(f"jitter must be between 0 and 1, but got {self.jitter}; for 5 %: --jitter 0.05")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
