"""The ten: LocalSGD(1, 4, 16) × {all-reduce, gossip, gossip + threshold}, and LocalSGD(32) with all-reduce.

LocalSGD(1) over all-reduce is bulk-synchronous SGD: the mean of weights after a step equals a step by the mean of
gradients, with momentum too, since both are linear. It is written as such, so that the baseline may overlap its
communication with the backward pass, as everybody's baseline does. Gossip after local steps mixes weights, and so does
that of period 1; gossip of gradients is `BulkSynchronous()` with `Gossip()`.
"""

from sandtable.study.method import Method

__all__ = ["default_methods"]

_LOCAL_RATE = 0.1
"""With local steps a worker goes by its own images alone, and bears less than the rate of the joined batch."""

_THRESHOLD = "Threshold(share=0.5, values='float16')"
"""Half of the components at half of their bits. With fewer gossip mixes too little: docs/results."""


def default_methods() -> list[Method]:
    """The ten, the baseline first."""
    found = []
    for period in (1, 4, 16):
        sync = f"LocalSGD(period={period})"
        all_reduce, all_reduce_rate = ("BulkSynchronous()", None) if period == 1 else (sync, _LOCAL_RATE)
        found += [
            Method(name=f"LocalSGD({period}), all-reduce", sync=all_reduce, learning_rate=all_reduce_rate),
            Method(name=f"LocalSGD({period}), gossip", sync=sync, exchange="Gossip()", learning_rate=_LOCAL_RATE),
            Method(
                name=f"LocalSGD({period}), gossip + threshold",
                sync=sync,
                exchange="Gossip()",
                compression=_THRESHOLD,
                learning_rate=_LOCAL_RATE,
            ),
        ]
    last = Method(name="LocalSGD(32), all-reduce", sync="LocalSGD(period=32)", learning_rate=_LOCAL_RATE)
    return [*found, last]
