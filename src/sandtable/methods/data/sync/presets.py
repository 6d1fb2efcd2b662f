"""Published combinations by their names: LocalSGD with the outer optimizer of the paper.

| name | outer | goes with |
|---|---|---|
| DiLoCo | Nesterov | AllReduce; `parts` above 1 is Streaming DiLoCo |
| NoLoCo | Consensus | Gossip |
| SparseLoCo | the mean itself | AllReduce, a sparse compression with error feedback and few-bit values |
"""

from dataclasses import dataclass, field

from sandtable.methods.data.sync.local_sgd import LocalSGD
from sandtable.methods.data.sync.outer import Consensus, Nesterov, Outer

__all__ = ["DiLoCo", "NoLoCo", "SparseLoCo"]


@dataclass(frozen=True)
class DiLoCo(LocalSGD):
    """Many local steps of AdamW, then one outer step with Nesterov momentum. Douillard et al. 2023."""

    period: int = 100
    outer: Outer | None = field(default_factory=Nesterov)


@dataclass(frozen=True)
class NoLoCo(LocalSGD):
    """DiLoCo without all-reduce: with Gossip, and a pull that keeps replicas together. Kolehmainen et al. 2025."""

    period: int = 50
    outer: Outer | None = field(default_factory=Consensus)


@dataclass(frozen=True)
class SparseLoCo(LocalSGD):
    """DiLoCo with error feedback instead of outer momentum, so that 1 to 3 % of components suffice.

    Sarfi et al. 2025. Use a top-k compression with 2-bit values; error feedback is on by default.
    """

    period: int = 30
    outer: Outer | None = field(default_factory=lambda: Nesterov(lr=1.0, momentum=0.0))
