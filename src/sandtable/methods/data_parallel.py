"""DataParallel: one object around a model and its optimizer; the training loop stays its owner's.

    parallel = DataParallel(model, optimizer, sync=LocalSGD(period=16), exchange=Gossip())
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        parallel.step()

`step` exchanges what the method says is due, lets the optimizer take its step and clears the gradients. To clip
gradients after they were averaged, give the optimizer a hook (`optimizer.register_step_pre_hook`).
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
from sandtable.methods.buckets import bucket_sizes, has_several
from sandtable.methods.buffers import Buffers
from sandtable.methods.compression import Compression, NoCompression
from sandtable.methods.exchange import AllReduce, Exchange, Hierarchical
from sandtable.methods.explain import Explanation, explain
from sandtable.methods.flat import flatten
from sandtable.methods.lane import Lane
from sandtable.methods.record import Record
from sandtable.methods.rules import check_combination
from sandtable.methods.server import ParameterServer
from sandtable.methods.server.driver import ServerDriver
from sandtable.methods.sync import BulkSynchronous, Driver, Setup, Sync
from sandtable.methods.wire import Wire
from sandtable.units import MIB

__all__ = ["DataParallel"]


class DataParallel:
    """Trains a model on every rank of a group, with three choices: when, with whom, and what is sent.

    All replicas start as rank 0's. `overlap`: gradients leave while the backward pass still computes, in buckets of
    `bucket_bytes` (as sent; the first one is smaller), and weights that are averaged before the step go beside both
    passes, where the method allows it. `buffers` (running statistics of
    BatchNorm): "average", as "first" rank has them, or "local"; they are exchanged in `synchronize`, since averaging
    them at the end equals averaging them at every step (running means are linear). Parameters that do not require
    gradients stay as they are; to train one later, make a new object.

    With a `ParameterServer` the weights live in shards on some of the ranks, updated there by an optimizer of the same
    kind; this one is not stepped, but the learning rates a scheduler gives it are taken over. Call `close` at the end.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sync: Sync | None = None,
        exchange: Exchange | ParameterServer | None = None,
        compression: Compression | None = None,
        group: dist.ProcessGroup | None = None,
        overlap: bool = True,
        bucket_bytes: int = 25 * MIB,
        buffers: str = "average",
        seed: int = 0,
    ) -> None:
        self.sync: Sync = BulkSynchronous() if sync is None else sync
        self.exchange: Exchange | ParameterServer = AllReduce() if exchange is None else exchange
        self.compression: Compression = NoCompression() if compression is None else compression
        self.wire = Wire(group)
        sparse = _sparse_parameters(model)
        check_combination(
            self.sync,
            self.exchange,
            self.compression,
            num_ranks=self.wire.size,
            has_sparse_gradients=bool(sparse),
        )
        if bucket_bytes < 1:
            raise MethodError(f"bucket_bytes must be 1 or more, but got {bucket_bytes}; DDP takes 25 MiB")
        _check_steps_alone(optimizer)
        self._parameters = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
        self._frozen = tuple(parameter for parameter in model.parameters() if not parameter.requires_grad)
        if not self._parameters:
            raise MethodError("a model must have a parameter that requires a gradient, but this one has none to train")
        sends_gradients = self.sync.exchanges_gradients or isinstance(self.exchange, Hierarchical)
        sizes = bucket_sizes(self.compression, bucket_bytes)
        is_served = isinstance(self.exchange, ParameterServer)
        goes_beside = (
            has_several(self._parameters, sizes)
            if sends_gradients
            else self.sync.averages_beside_passes(self.compression)
        )
        overlap = overlap and goes_beside and not is_served
        if overlap:
            self.wire = self.wire.private()
        self._buffers = Buffers(model, self.wire, policy=buffers)
        self._start_equal(model)
        self._optimizer = optimizer
        self._lane = Lane(threaded=overlap)
        self._driver: Driver
        if isinstance(self.exchange, ParameterServer):
            self._driver = ServerDriver(
                model,
                optimizer,
                sync=self.sync,
                exchange=self.exchange,
                compression=self.compression,
                wire=self.wire,
                lane=self._lane,
                seed=seed,
            )
        else:
            self._driver = self.sync.driver(
                Setup(
                    model=model,
                    parameters=self._parameters,
                    sparse_parameters=tuple(sparse),
                    optimizer=optimizer,
                    exchange=self.exchange,
                    compression=self.compression,
                    wire=self.wire,
                    lane=self._lane,
                    overlap=overlap,
                    bucket_bytes=bucket_bytes,
                    seed=seed,
                )
            )
        self._driver.begin()
        self.record = Record(self.wire, self._lane, self._parameters)

    def step(self) -> None:
        """Exchange what is due, take the optimizer's step, clear the gradients."""
        self._check_frozen()
        self._driver.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.record.count_step()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only add to the gradients; the last one before `step` stands outside."""
        before, self._driver.paused = self._driver.paused, True
        try:
            yield
        finally:
            self._driver.paused = before

    @torch.no_grad()
    def synchronize(self) -> None:
        """All replicas equal now: the mean of their weights, and buffers by their policy. All ranks call it."""
        if not self._driver.replicas_are_equal:
            self._lane.run(self._take_common_weights)
            self._driver.begin()
        self._lane.run(self._buffers.exchange)

    def explain(self, bandwidth: float | None = None, latency: float | None = None) -> Explanation:
        """What a step will cost: messages, bytes and, for links of `bandwidth` bytes/s and `latency` s, time."""
        return explain(
            self._driver.cost(),
            self._parameters,
            compression=self.compression,
            num_ranks=self.wire.size,
            bandwidth=bandwidth,
            latency=latency,
        )

    def close(self) -> None:
        """End: hooks off the model, which may then be trained in another way; servers stay until all ranks are here."""
        self._driver.close()

    def state_dict(self) -> dict[str, Any]:
        """What this rank's next steps depend on beside model and optimizer: a copy, to be saved for each rank."""
        return {"method": self._method, "driver": copy.deepcopy(self._driver.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`; load the rank's own model and optimizer after constructing this object, too."""
        if state["method"] != self._method:
            raise MethodError(
                f"a state must be of the same method ({self._method}), but it is of {state['method']}; "
                "go on with that one, or start this one without a state"
            )
        self._driver.load_state_dict(copy.deepcopy(state["driver"]))

    @property
    def _method(self) -> str:
        return f"{self.sync}, {self.exchange}, {self.compression} on {self.wire.size} ranks"

    def _check_frozen(self) -> None:
        if any(parameter.requires_grad for parameter in self._frozen):
            raise MethodError(
                "all parameters that are trained must be exchanged, but one requires a gradient now that did not when "
                "this object was made; after requires_grad_(), close() it and make a new DataParallel(model, optimizer)"
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
    """`step` has no closure to give: gradients are exchanged once for each backward pass, before it."""
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [each.name for each in arguments if each.kind in named and each.default is inspect.Parameter.empty]
    if needed:
        raise MethodError(
            f"an optimizer must step without arguments, but {type(optimizer).__name__}.step needs {', '.join(needed)}; "
            "try torch.optim.AdamW, or for L-BFGS sandtable.methods.distbelief.Sandblaster"
        )


def _sparse_parameters(model: nn.Module) -> list[Tensor]:
    """Weights of embeddings made with sparse=True: torch gives them sparse gradients."""
    return [
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    ]
