"""Parameter servers: the weights live on servers, workers push gradients and pull weights.

    worker 0 ── gradients ──▶ ┌──────────┐ ◀── gradients ── worker 1
             ◀── weights ──── │ server 0 │ ──── weights ──▶
                              │ server 1 │                        one part of every table each, with its optimizer
                              └──────────┘

One bookkeeper a part of the books: whoever has news brings it, and takes a fresh copy home. See docs/servers.md.
"""

from sandtable.methods.server.client import ServerClient, ServerCounters, StepCost
from sandtable.methods.server.roles import Role
from sandtable.methods.server.serving import ServerReport, serve
from sandtable.methods.server.settings import Checkpoints, ParameterServer
from sandtable.methods.server.shard import OptimizerFactory

__all__ = [
    "Checkpoints",
    "OptimizerFactory",
    "ParameterServer",
    "Role",
    "ServerClient",
    "ServerCounters",
    "ServerReport",
    "StepCost",
    "serve",
]
