"""sandtable: rehearse a training run on virtual GPUs before paying for real ones.

The rooms are sub-packages, imported by whoever needs them (`sandtable.cluster`, `sandtable.trace`, `sandtable.vgpu`).
Importing this package alone does nothing, so that tools which only read traces start in milliseconds.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
