"""Asynchronous training: nobody waits for anybody.

A worker pushes its gradient to the servers, which apply it at once, and pulls the weights as they are then. Between its
pull and its next push others have pushed too: its gradient is *stale* by that many updates. With P workers of equal
speed that is P - 1 updates on average, so a learning rate that suits one worker is often too large for many.

Dean et al., "Large Scale Distributed Deep Networks", 2012; Recht et al., "Hogwild!", 2011.
"""

from dataclasses import dataclass

from sandtable.methods.sync.served import ServedSync

__all__ = ["Asynchronous"]


@dataclass(frozen=True)
class Asynchronous(ServedSync):
    """Each worker at its own pace; only with `ParameterServer`."""
