"""Addresses: where each server can be reached.

Either the addresses are given, or servers take a free port and write it into torch's key-value store, which torchrun
keeps for the job. Workers look an address up again whenever they reconnect, since a restarted server may have another.
Once connected they no longer need the store.
"""

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from sandtable.errors import MethodError
from sandtable.methods.server.settings import ParameterServer

__all__ = ["Address", "AddressRegistry", "StoredAddresses", "address_registry", "own_host"]

Address = tuple[str, int]


class AddressRegistry(ABC):
    """The addresses of servers."""

    @abstractmethod
    def find(self, shard: int) -> Address | None:
        """Return the address of `shard`, or None if it is not known yet."""

    @abstractmethod
    def listen_address(self, shard: int) -> Address:
        """Return where the server of `shard` must listen; port 0 is any free one."""

    @abstractmethod
    def announce(self, shard: int, address: Address) -> None:
        """Announce that the server of `shard` listens at `address`."""


class FixedAddresses(AddressRegistry):
    """Addresses that the user fixed."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = [_parse(address) for address in addresses]

    def find(self, shard: int) -> Address | None:
        return self._addresses[shard]

    def listen_address(self, shard: int) -> Address:
        return self._addresses[shard]

    def announce(self, shard: int, address: Address) -> None:
        """Do nothing: all processes know it."""


class StoredAddresses(AddressRegistry):
    """Addresses in torch's key-value store."""

    def __init__(self, store: Store, *, host: str) -> None:
        self._store = store
        self._host = host
        self._last: dict[int, Address] = {}

    def find(self, shard: int) -> Address | None:
        # The store may die with the process that hosts it; the server's last address is still valid.
        with contextlib.suppress(RuntimeError):
            if self._store.check([_key(shard)]):
                self._last[shard] = _parse(self._store.get(_key(shard)).decode())
        return self._last.get(shard)

    def listen_address(self, shard: int) -> Address:
        return self._host, 0

    def announce(self, shard: int, address: Address) -> None:
        self._store.set(_key(shard), f"{address[0]}:{address[1]}")


def address_registry(settings: ParameterServer, store: Store | None) -> AddressRegistry:
    """Make the registry: addresses as given, else in `store`, else in torchrun's store at MASTER_ADDR."""
    if settings.addresses is not None:
        return FixedAddresses(settings.addresses)
    if store is not None:
        return StoredAddresses(store, host=own_host())
    return StoredAddresses(_store_of_job(settings.timeout_s), host=own_host())


def _store_of_job(timeout_s: float) -> Store:
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as missing:
        raise MethodError(
            f"servers and workers must find each other, but {missing.args[0]} is not set; start them with torchrun, "
            'or give addresses, as in ParameterServer(shards=1, addresses=("10.0.0.1:5000",))'
        ) from None
    # torchrun keeps a store for its ranks; without torchrun rank 0 does, unless its process group has done so already.
    hosts = (
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        and os.environ.get("RANK") == "0"
        and not dist.is_initialized()
    )
    store = TCPStore(
        host, port, is_master=hosts, timeout=timedelta(seconds=timeout_s), wait_for_workers=False, multi_tenant=True
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"sandtable/{attempt}", store)


def own_host() -> str:
    """Return this machine's address on the route to the job's first machine, or by its own name if there is none.

    Connecting a UDP socket sends nothing, but chooses the route.
    """
    peer = os.environ.get("MASTER_ADDR") or socket.gethostname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _parse(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise MethodError(f'an address must read "host:port", but got "{text}"; as in "10.0.0.1:5000"')
    return host, int(port)


def _key(shard: int) -> str:
    return f"server/{shard}"
