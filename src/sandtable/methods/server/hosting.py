"""A server in a worker's own process: so that a script with `DataParallel` needs no ranks that only serve.

The shards live on some of the workers, spread over the ranks, each in a thread. A job with servers of their own, which
outlive any worker, takes `serve` and `ServerClient` instead.
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
from sandtable.methods.server.coding import SettingsOfCodec
from sandtable.methods.server.directory import InStore, own_host
from sandtable.methods.server.serving import Server
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.server.shard import OptimizerFactory
from sandtable.methods.wire import Wire

__all__ = ["Host", "announce", "hosting_ranks", "same_optimizer"]

_PART = re.compile(r"\[\d+:\d+\]$")
"""What follows a parameter's name where a shard holds only a part of it."""


class Host:
    """The server of one shard, in a thread of this process from now until all workers are done."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        exchange: ParameterServer,
        sync: object,
        compression: SettingsOfCodec | None,
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
        self._directory = InStore(HashStore(), host=own_host())
        self._failure: BaseException | None = None
        self._announced = threading.Event()
        self._shard = shard
        self._thread = threading.Thread(target=self._run, name=f"shard-{shard}", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    @property
    def address(self) -> str:
        """Where it listens."""
        while (found := self._directory.find(self._shard)) is None:
            self._thread.join(0.01)
            self._check()
        return f"{found[0]}:{found[1]}"

    def join(self) -> None:
        """Serve until all workers are done or lost; then say whether anything went wrong."""
        self._thread.join()
        atexit.unregister(self._at_exit)
        self._check()

    def _run(self) -> None:
        try:
            self.server.run(self._directory)
        except BaseException as error:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _at_exit(self) -> None:
        """A script that has ended well still serves those that have not; one that failed takes its shard along."""
        if getattr(sys, "last_type", None) is None:
            self._thread.join()


def hosting_ranks(exchange: ParameterServer, num_ranks: int) -> tuple[int, ...]:
    """Which ranks hold the shards: as `servers` says, else spread over all."""
    if exchange.shards > num_ranks:
        raise MethodError(
            f"shards must not exceed the ranks that hold them ({num_ranks}), but got {exchange.shards}; take fewer"
        )
    found = exchange.servers or tuple(shard * num_ranks // exchange.shards for shard in range(exchange.shards))
    if not all(0 <= rank < num_ranks for rank in found):
        raise MethodError(f"servers must be ranks of the group (0 to {num_ranks - 1}), but got {found}")
    return found


def announce(exchange: ParameterServer, host: Host | None, wire: Wire) -> ParameterServer:
    """Tell all ranks where the shards are. All ranks call it; those that hold one with their host."""
    told: list[str | None] = [None] * wire.size
    dist.all_gather_object(told, None if host is None else host.address, group=wire.group)
    addresses = [told[rank] for rank in hosting_ranks(exchange, wire.size)]
    return replace(exchange, servers=None, addresses=tuple(address for address in addresses if address))


def same_optimizer(model: nn.Module, optimizer: Optimizer) -> OptimizerFactory:
    """Makes an optimizer of the same kind, with the same groups and options, for the parameters a shard holds."""
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
                "run servers of their own with serve(model, factory) and ServerClient on the workers"
            ) from None

    return make
