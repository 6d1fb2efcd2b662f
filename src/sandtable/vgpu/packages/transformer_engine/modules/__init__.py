"""What stands in for Transformer Engine's Python where it is not installed.

Layers with the names, parameters and shapes of the package's own, that record the kernels which its layers would
launch, in fewer lines: casts are kernels of their own also where a norm would write FP8 itself, and userbuffers are
left out. Installing the package's Python (`pip install --no-deps transformer_engine onnxscript`) gives all of it.

    recipe.py      how numbers are scaled for FP8, and when
    linear.py      linear layers, with tensor and sequence parallelism
    layers.py      norms, gated layers, a whole transformer layer
    attention.py   attention, rotary embedding, context parallelism
    training.py    Adam, states of random generators, checkpoints of activations
"""
