"""Compiled GPU packages: what takes the place of the parts that only a card can run, one file per package.

A package's Python code runs as it is. Where it calls a kernel, the file for it here defines an operator of torch with
the kernel's name and the tensors that it reads and writes. The virtual GPU then treats it like any other operator:
shapes, memory, a record. `engine/compute` knows what it costs.
"""

from sandtable.vgpu.packages import mpi4py
from sandtable.vgpu.packages.described_operators import DescribedOperators
from sandtable.vgpu.packages.descriptions import follow_descriptions
from sandtable.vgpu.packages.known import follow_packages
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = [
    "DescribedOperators",
    "Package",
    "Watcher",
    "follow_descriptions",
    "follow_packages",
    "mpi4py",
]
