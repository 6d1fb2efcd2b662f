"""torch.compile: the real compiler runs, and only its kernels are ours.

Dynamo, AOTAutograd and Inductor trace the script, partition it into forward and backward, fuse operators and plan
memory as they do for a card; none of that needs one. What needs it is the last step, Triton, which turns the source of
a fused kernel into code for the card. In its place stands an object that records the launch, with the bytes that the
kernel reads and writes (`fused_kernel.py`). Everything else in the code that Inductor writes, such as allocations,
matrix products and collectives, runs on the virtual GPU as it is.
"""

from sandtable.vgpu.compile.compiler import follow_compiler

__all__ = ["follow_compiler"]
