"""What one operator costs on one device, and what issuing it costs the host.

    model = CostModel(load_device("a100-sxm4-80gb"))
    model.cost(signature)                       # Cost(work_ns, family, basis, flops, bytes)
    model.host_ns(signature, Phase.FORWARD)

One file per family of operators; `streaming.py` is for those limited by memory, products and convolutions share
`tiles.py`, and `measured.py` holds times that take precedence over all formulas.
"""

from sandtable.engine.compute.family import Basis, Conditions, Cost
from sandtable.engine.compute.measured import MeasuredRow, MeasuredTable
from sandtable.engine.compute.model import CostModel

__all__ = ["Basis", "Conditions", "Cost", "CostModel", "MeasuredRow", "MeasuredTable"]
