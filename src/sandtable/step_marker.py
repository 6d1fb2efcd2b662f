"""Step marker: how a script says where its steps end."""

import sys

__all__ = ["STEP_EVENT", "step"]

STEP_EVENT = "sandtable.step"
"""The audit event that ends a step: `sys.audit("sandtable.step")` does so without importing this package."""


def step() -> None:
    """End a training step here, for a script whose steps `sandtable run` does not recognize. Otherwise do nothing.

    From the first call on, only these calls end steps.
    """
    sys.audit(STEP_EVENT)
