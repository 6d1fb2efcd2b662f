"""The largest safe period of local SGD.

Yu, Yang and Zhu, "Parallel Restarted SGD", 2018: with T steps on N workers the speed-up stays linear if weights are
averaged at least every T^(1/4) / N^(3/4) steps.
"""

import math

from sandtable.errors import MethodError

__all__ = ["period_for"]


def period_for(num_steps: int, num_workers: int) -> int:
    """Return the longest period within the bound, at least 1: floor(T^¼ / N^¾)."""
    if num_steps < 1 or num_workers < 1:
        raise MethodError(
            f"num_steps and num_workers must be 1 or more, but got {num_steps} and {num_workers}; "
            "give the steps of the whole training run and the number of ranks"
        )
    # T^¼ / N^¾ ≥ p  ⇔  T ≥ p⁴·N³: in integers, where roots of floats would be off by one.
    return max(1, math.isqrt(math.isqrt(num_steps // num_workers**3)))
