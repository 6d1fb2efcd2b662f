"""PARITY: does a run with many ranks compute what one process computes? (docs/parity.md)

    parallel = the run with all ranks, as its ranks saved it
    outline  = the script with one rank, on its own data: names and shapes of parameters, and what it reads
    replicas = the script with one rank, guided: each takes the samples, seeds and weights of some ranks of `parallel`
    update   = one of these again, with the mean of the replicas' gradients

The gradients that the optimizer gets in `update` are what `parallel` should have computed, by definition.
"""

from sandtable.check.parity.differences import Measured
from sandtable.check.parity.findings import parity_findings
from sandtable.check.parity.losses import losses_agree
from sandtable.check.parity.plan import ReferencePlan, plan_reference, plan_update
from sandtable.check.parity.slots import possible_fusions

__all__ = [
    "Measured",
    "ReferencePlan",
    "losses_agree",
    "parity_findings",
    "plan_reference",
    "plan_update",
    "possible_fusions",
]
