"""PARAMETER SERVERS: the weights live on servers, workers push gradients and pull weights.

    worker 0 ── gradients ──▶ ┌──────────┐ ◀── gradients ── worker 1
             ◀── weights ──── │ server 0 │ ──── weights ──▶
                              │ server 1 │                        each holds a part of the model, with its optimizer
                              └──────────┘

Behind this door: servers and clients, and DistBelief's two methods, Downpour SGD and Sandblaster L-BFGS. See
docs/servers.md.

    exchange = ParameterServer(shards=2)
    if exchange.role.is_server:
        serve(model, lambda named: torch.optim.SGD(named, lr=0.1), exchange=exchange, sync=Asynchronous())
    else:
        client = ServerClient(model, exchange=exchange, sync=Asynchronous())  # then backward(), client.step()
"""

from sandtable.methods.server.addresses import own_host
from sandtable.methods.server.client import ServerClient, ServerCounters, StepCost
from sandtable.methods.server.connection import ConnectionTraffic
from sandtable.methods.server.distbelief.coordinator import CoordinatorReport, coordinate
from sandtable.methods.server.distbelief.downpour import Downpour, DownpourCounters
from sandtable.methods.server.distbelief.history import LBFGSHistory
from sandtable.methods.server.distbelief.lbfgs import LBFGS, Ending, Progress, minimize
from sandtable.methods.server.distbelief.line_search import LineSearch
from sandtable.methods.server.distbelief.named_vectors import NamedVectors
from sandtable.methods.server.distbelief.replica import Replica, ReplicaReport, run_replica
from sandtable.methods.server.distbelief.settings import Sandblaster, SandblasterRole
from sandtable.methods.server.distbelief.space import LocalSpace, VectorSpace
from sandtable.methods.server.distbelief.vector_server import VectorServerReport, serve_vectors
from sandtable.methods.server.distbelief.work_queue import WorkQueue
from sandtable.methods.server.flat_parameters import FlatParameters
from sandtable.methods.server.in_process_server import InProcessServer, server_ranks, share_addresses
from sandtable.methods.server.roles import Role
from sandtable.methods.server.server import ServerReport, serve
from sandtable.methods.server.settings import Checkpoints, ParameterServer
from sandtable.methods.server.shard import OptimizerFactory
from sandtable.methods.server.shard_plan import ShardPlan
from sandtable.methods.server.sync import Asynchronous, ServerSync, StaleSynchronous, check_sync

__all__ = [
    "LBFGS",
    "Asynchronous",
    "Checkpoints",
    "ConnectionTraffic",
    "CoordinatorReport",
    "Downpour",
    "DownpourCounters",
    "Ending",
    "FlatParameters",
    "InProcessServer",
    "LBFGSHistory",
    "LineSearch",
    "LocalSpace",
    "NamedVectors",
    "OptimizerFactory",
    "ParameterServer",
    "Progress",
    "Replica",
    "ReplicaReport",
    "Role",
    "Sandblaster",
    "SandblasterRole",
    "ServerClient",
    "ServerCounters",
    "ServerReport",
    "ServerSync",
    "ShardPlan",
    "StaleSynchronous",
    "StepCost",
    "VectorServerReport",
    "VectorSpace",
    "WorkQueue",
    "check_sync",
    "coordinate",
    "minimize",
    "own_host",
    "run_replica",
    "serve",
    "serve_vectors",
    "server_ranks",
    "share_addresses",
]
