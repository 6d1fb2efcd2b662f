"""The ten: LocalSGD(1, 4, 16) × {all-reduce, gossip, gossip + threshold}, and LocalSGD(32) with all-reduce.

LocalSGD(1) over all-reduce is bulk-synchronous SGD: the mean of weights after a step equals a step by the mean of
gradients, with momentum too, since both are linear. It is written as such, so that the baseline may overlap its
communication with the backward pass, as everybody's baseline does. Gossip after local steps mixes weights, and so does
that of period 1; gossip of gradients is `BulkSynchronous()` with `Gossip()`.
"""

from sandtable.study.method import Method

__all__ = ["default_methods"]

_SHARE = 0.05
"""The share of components that the threshold lets through: the study that is reproduced dropped about 95 %."""


def default_methods() -> list[Method]:
    """The ten, the baseline first."""
    found = []
    for period in (1, 4, 16):
        sync = f"LocalSGD(period={period})"
        all_reduce = "BulkSynchronous()" if period == 1 else sync
        found += [
            Method(name=f"LocalSGD({period}), all-reduce", sync=all_reduce),
            Method(name=f"LocalSGD({period}), gossip", sync=sync, exchange="Gossip()"),
            Method(
                name=f"LocalSGD({period}), gossip + threshold",
                sync=sync,
                exchange="Gossip()",
                compression=f"Threshold(share={_SHARE})",
            ),
        ]
    return [*found, Method(name="LocalSGD(32), all-reduce", sync="LocalSGD(period=32)")]
