"""A server in a worker's process, so that a script with `DataParallel` needs no ranks that only serve.

The shards live on some of the workers, spread over the ranks, each in a thread. For dedicated servers, which outlive
any worker, use `serve` and `ServerClient` instead.
"""

import atexit
import re
import sys
import threading
from dataclasses import replace

import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.optim import Optimizer

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import StoredAddresses, own_host
from sandtable.methods.server.codecs import CodecSettings
from sandtable.methods.server.server import Server
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.server.shard import OptimizerFactory
from sandtable.methods.server.sync import ServerSync

__all__ = ["InProcessServer", "same_optimizer", "server_ranks", "share_addresses"]

_PART = re.compile(r"\[\d+:\d+\]$")
"""What follows a parameter's name if a shard holds only a part of it."""


class InProcessServer:
    """The server of one shard, in a thread of this process until all workers are done."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        exchange: ParameterServer,
        sync: ServerSync,
        compression: CodecSettings | None,
        shard: int,
        workers: int,
    ) -> None:
        self.server = Server(
            model,
            same_optimizer(model, optimizer),
            exchange=exchange,
            sync=sync,
            compression=compression,
            shard=shard,
            workers=workers,
        )
        self._registry = StoredAddresses(HashStore(), host=own_host())
        self._failure: BaseException | None = None
        self._announced = threading.Event()
        self._shard = shard
        self._thread = threading.Thread(target=self._run, name=f"shard-{shard}", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    @property
    def address(self) -> str:
        """The address it listens at."""
        while (address := self._registry.find(self._shard)) is None:
            self._thread.join(0.01)
            self._check()
        return f"{address[0]}:{address[1]}"

    def join(self) -> None:
        """Serve until all workers are done or lost; raise the server's error, if any."""
        self._thread.join()
        atexit.unregister(self._at_exit)
        self._check()

    def _run(self) -> None:
        try:
            self.server.run(self._registry)
        except BaseException as error:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _at_exit(self) -> None:
        """Keep serving other workers when this script has ended well; if it failed, its shard ends with it."""
        if getattr(sys, "last_type", None) is None:
            self._thread.join()


def server_ranks(exchange: ParameterServer, num_ranks: int) -> tuple[int, ...]:
    """Return the ranks that hold the shards: `servers` if given, else spread over all."""
    if exchange.shards > num_ranks:
        raise MethodError(
            f"shards must not exceed the number of ranks ({num_ranks}), but got {exchange.shards}; use fewer"
        )
    ranks = exchange.servers or tuple(shard * num_ranks // exchange.shards for shard in range(exchange.shards))
    if not all(0 <= rank < num_ranks for rank in ranks):
        raise MethodError(f"servers must be ranks of the group (0 to {num_ranks - 1}), but got {ranks}")
    return ranks


def share_addresses(
    exchange: ParameterServer, server: InProcessServer | None, group: dist.ProcessGroup | None = None
) -> ParameterServer:
    """Return `exchange` with the address of every shard. All ranks of `group` call it, those with a server pass it."""
    num_ranks = dist.get_world_size(group)
    gathered: list[str | None] = [None] * num_ranks
    dist.all_gather_object(gathered, None if server is None else server.address, group=group)
    addresses = [gathered[rank] for rank in server_ranks(exchange, num_ranks)]
    return replace(exchange, servers=None, addresses=tuple(address for address in addresses if address))


def same_optimizer(model: nn.Module, optimizer: Optimizer) -> OptimizerFactory:
    """Return a factory of optimizers of the same kind, groups and options, for the parameters a shard holds."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    group_of = {
        names[id(parameter)]: number
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if id(parameter) in names
    }
    settings = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]

    def make(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        parameters: list[list[nn.Parameter]] = [[] for _ in settings]
        for label, parameter in named:
            number = group_of.get(_PART.sub("", label))
            if number is not None:
                parameters[number].append(parameter)
        groups = [{**options, "params": held} for options, held in zip(settings, parameters, strict=True)]
        try:
            return type(optimizer)(groups)  # type: ignore[call-arg]
        except (TypeError, ValueError) as error:
            raise MethodError(
                f"a server must be able to make its own {type(optimizer).__name__} from parameter groups, but {error}; "
                "run dedicated servers with serve(model, factory) and ServerClient on the workers"
            ) from None

    return make
