"""DataParallel: one object around a model and its optimizer; the training loop stays yours.

    parallel = DataParallel(model, optimizer, sync=LocalSGD(period=16), exchange=Gossip())
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        parallel.step()

`step` exchanges what is due, steps the optimizer and clears the gradients. To clip gradients after they were averaged,
give the optimizer a hook (`optimizer.register_step_pre_hook`).
"""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from sandtable.errors import MethodError
from sandtable.methods.data.combinations import check_combination
from sandtable.methods.data.communication_queue import CommunicationQueue
from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.data.compression.none import NoCompression
from sandtable.methods.data.exchange.all_reduce import AllReduce
from sandtable.methods.data.exchange.exchange import Exchange
from sandtable.methods.data.exchange.hierarchical import Hierarchical
from sandtable.methods.data.explanation import Explanation, explain
from sandtable.methods.data.record import Record
from sandtable.methods.data.server_driver import ServerDriver
from sandtable.methods.data.sync.bulk import BulkSynchronous
from sandtable.methods.data.sync.gradients import compressed_bucket_sizes
from sandtable.methods.data.sync.sync import Sync, SyncDriver, SyncSetup
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.server.sync import ServerSync, check_sync
from sandtable.methods.transport.buckets import fill_several
from sandtable.methods.transport.buffers import Buffers
from sandtable.methods.transport.vectors import flatten
from sandtable.methods.transport.wire import Wire
from sandtable.units import MIB

__all__ = ["DataParallel"]


class DataParallel:
    """Trains a model on every rank of a group, with three choices: when, with whom, and what is sent.

    All replicas start with rank 0's weights. Parameters that do not require gradients do not change; to train one
    later, make a new object. Options:

    - `sync`: when ranks exchange, `BulkSynchronous()` by default.
    - `exchange`: with whom, `AllReduce()` by default. With a `ParameterServer` the weights live in shards on some of
      the ranks, updated there by an optimizer of the same kind; `optimizer` is not stepped, but the servers adopt the
      learning rates that a scheduler gives it. Call `close` at the end.
    - `compression`: what is sent, `NoCompression()` by default.
    - `group`: the ranks that train together, all by default.
    - `overlap`: where the method allows it, gradients leave while the backward pass still computes, and weights that
      are averaged before the step travel during both passes.
    - `bucket_bytes`: size of a bucket of gradients as sent; the first one is smaller.
    - `buffers` (running statistics of BatchNorm): "average", "first" (rank 0's) or "local". They are exchanged in
      `synchronize`: running means are linear, so averaging them at the end equals averaging them at every step.
    - `seed`: of the random choices that compressions make.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sync: Sync | ServerSync | None = None,
        exchange: Exchange | ParameterServer | None = None,
        compression: Compression | None = None,
        group: dist.ProcessGroup | None = None,
        overlap: bool = True,
        bucket_bytes: int = 25 * MIB,
        buffers: str = "average",
        seed: int = 0,
    ) -> None:
        self.sync: Sync | ServerSync = BulkSynchronous() if sync is None else sync
        self.exchange: Exchange | ParameterServer = AllReduce() if exchange is None else exchange
        self.compression: Compression = NoCompression() if compression is None else compression
        self.wire = Wire(group)
        self._check(model, optimizer, bucket_bytes)
        self._parameters = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
        self._frozen = tuple(parameter for parameter in model.parameters() if not parameter.requires_grad)
        if not self._parameters:
            raise MethodError("a model must have a parameter that requires a gradient, but this one has none to train")
        overlap = overlap and self._can_overlap(bucket_bytes)
        if overlap:
            self.wire = self.wire.private()
        self._buffers = Buffers(model, self.wire, policy=buffers)
        self._start_equal(model)
        self._optimizer = optimizer
        self._queue = CommunicationQueue(threaded=overlap)
        self._driver = self._make_driver(model, overlap=overlap, bucket_bytes=bucket_bytes, seed=seed)
        self._driver.begin()
        self.record = Record(self.wire, self._queue, self._parameters)

    def step(self) -> None:
        """Exchange what is due, step the optimizer, clear the gradients."""
        self._check_frozen()
        self._driver.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.record.count_step()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes only accumulate gradients; run the last one before `step` outside."""
        before, self._driver.paused = self._driver.paused, True
        try:
            yield
        finally:
            self._driver.paused = before

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make all replicas equal: the mean of their weights, and buffers by their policy. All ranks call it."""
        if not self._driver.replicas_are_equal:
            self._queue.run(self._take_common_weights)
            self._driver.begin()
        self._queue.run(self._buffers.exchange)

    def explain(self, bandwidth: float | None = None, latency: float | None = None) -> Explanation:
        """Return what a step will cost: messages, bytes and, given `bandwidth` in bytes/s and `latency` in s, time."""
        return explain(
            self._driver.cost(),
            self._parameters,
            compression=self.compression,
            num_ranks=self.wire.size,
            bandwidth=bandwidth,
            latency=latency,
        )

    def close(self) -> None:
        """Remove hooks from the model, which may then be trained otherwise; servers wait until all ranks are here."""
        self._driver.close()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what this rank's next steps depend on besides model and optimizer; save it on each rank."""
        return {"method": self._method, "driver": copy.deepcopy(self._driver.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state_dict()`; also load the rank's own model and optimizer after constructing this object."""
        if state["method"] != self._method:
            raise MethodError(
                f"a state must be of the same method ({self._method}), but it is of {state['method']}; "
                "resume with that method, or start this one without a state"
            )
        self._driver.load_state_dict(copy.deepcopy(state["driver"]))

    def _check(self, model: nn.Module, optimizer: Optimizer, bucket_bytes: int) -> None:
        check_combination(
            self.sync,
            self.exchange,
            self.compression,
            num_ranks=self.wire.size,
            has_sparse_gradients=bool(_sparse_parameters(model)),
        )
        if bucket_bytes < 1:
            raise MethodError(f"bucket_bytes must be 1 or more, but got {bucket_bytes}; DDP takes 25 MiB")
        _check_steps_alone(optimizer)

    def _can_overlap(self, bucket_bytes: int) -> bool:
        if isinstance(self.exchange, ParameterServer) or not isinstance(self.sync, Sync):
            return False
        if self.sync.exchanges_gradients or isinstance(self.exchange, Hierarchical):
            return fill_several(self._parameters, compressed_bucket_sizes(self.compression, bucket_bytes))
        return self.sync.averages_beside_passes(self.compression)

    def _make_driver(self, model: nn.Module, *, overlap: bool, bucket_bytes: int, seed: int) -> SyncDriver:
        if isinstance(self.exchange, ParameterServer):
            return ServerDriver(
                model,
                self._optimizer,
                sync=check_sync(self.sync),
                exchange=self.exchange,
                compression=self.compression,
                wire=self.wire,
                queue=self._queue,
                seed=seed,
            )
        assert isinstance(self.sync, Sync), f"check_combination() must refuse {self.sync} without a server"
        return self.sync.driver(
            SyncSetup(
                model=model,
                parameters=self._parameters,
                sparse_parameters=tuple(_sparse_parameters(model)),
                optimizer=self._optimizer,
                exchange=self.exchange,
                compression=self.compression,
                wire=self.wire,
                queue=self._queue,
                overlap=overlap,
                bucket_bytes=bucket_bytes,
                seed=seed,
            )
        )

    @property
    def _method(self) -> str:
        return f"{self.sync}, {self.exchange}, {self.compression} on {self.wire.size} ranks"

    def _check_frozen(self) -> None:
        if any(parameter.requires_grad for parameter in self._frozen):
            raise MethodError(
                "all trained parameters must be exchanged, but one requires a gradient now that did not when this "
                "object was made; after requires_grad_(), close() it and make a new DataParallel(model, optimizer)"
            )

    def _start_equal(self, model: nn.Module) -> None:
        for vector in flatten(parameter.detach() for parameter in model.parameters()):
            vector.load_weights()
            self.wire.broadcast(vector.data)
            vector.store_weights()
        self._buffers.start_equal()

    def _take_common_weights(self) -> None:
        if self._driver.fetch_common():
            return
        for vector in flatten(self._parameters):
            vector.load_weights()
            self.wire.all_reduce(vector.data)
            vector.data.div_(self.wire.size)
            vector.store_weights()


def _check_steps_alone(optimizer: Optimizer) -> None:
    """Refuse an optimizer that needs a closure: gradients are exchanged once per backward pass, before `step`."""
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [
        argument.name
        for argument in arguments
        if argument.kind in named and argument.default is inspect.Parameter.empty
    ]
    if needed:
        raise MethodError(
            f"an optimizer must step without arguments, but {type(optimizer).__name__}.step needs {', '.join(needed)}; "
            "try torch.optim.AdamW, or for L-BFGS sandtable.methods.server.Sandblaster"
        )


def _sparse_parameters(model: nn.Module) -> list[Tensor]:
    """Return the weights of embeddings made with sparse=True: torch gives them sparse gradients."""
    return [
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    ]
