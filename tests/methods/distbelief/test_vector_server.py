"""A shard's answers: requests are carried out once, in order, and only for the current coordinator."""

from typing import Any

import pytest
import torch
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.server import Checkpoints, NamedVectors, Sandblaster, ShardPlan
from sandtable.methods.server.codecs import Decoder
from sandtable.methods.server.distbelief.operations import Operation, copy, dot, scale, zero
from sandtable.methods.server.distbelief.sessions import Caller
from sandtable.methods.server.distbelief.shard_checkpoints import ShardCheckpoints
from sandtable.methods.server.distbelief.vector_server import VectorServer
from sandtable.methods.server.message import MalformedError, MessageKind, ServerMessage
from sandtable.methods.server.request_handler import RefusedError
from sandtable.methods.server.shard import initial_weights, raw_bytes

NOTHING = memoryview(b"")
COORDINATOR, REPLICA, TWIN = Caller(0, "c"), Caller(1, "a"), Caller(2, "b")


class Shard:
    """A server of three ones, spoken to without a socket."""

    def __init__(self, checkpoints: Checkpoints | None = None, after: Any = None) -> None:
        model = nn.Linear(3, 1, bias=False).double()
        nn.init.ones_(model.weight)
        plan = ShardPlan.make(model, num_shards=1)
        settings = Sandblaster()
        self.vectors = NamedVectors(initial_weights(model, plan.shards[0]))
        shard_checkpoints = (
            None if checkpoints is None else ShardCheckpoints(checkpoints, shard=0, num_shards=1, digest=plan.digest)
        )
        self.server = VectorServer(
            self.vectors,
            Decoder(plan.shards[0], None),
            for_coordinator=settings.identity(0),
            for_replicas=settings.identity(0, plan.digest),
            checkpoints=shard_checkpoints,
            after=after,
            timeout_s=1.0,
        )
        self.incarnation = self.server.welcome(COORDINATOR)["incarnation"]

    def ask(self, caller: Caller, kind: MessageKind, payload: memoryview = NOTHING, **fields: Any) -> dict[str, Any]:
        return self.server.answer(caller, ServerMessage(kind, fields, payload))[0]

    def operate(self, number: int, *operations: Operation, **fields: Any) -> dict[str, Any]:
        wire = [operation.to_wire() for operation in operations]
        return self.ask(
            COORDINATOR, MessageKind.OPERATE, incarnation=self.incarnation, number=number, operations=wire, **fields
        )

    def push(self, caller: Caller, portion: int, value: float, evaluation: str = "first") -> dict[str, Any]:
        gradient = torch.full((3,), value, dtype=torch.float64)
        fields = {"evaluation": evaluation, "portion": portion, "lengths": [24], "absent": []}
        return self.ask(caller, MessageKind.PUSH, raw_bytes(gradient), **fields)

    @property
    def weights(self) -> list[float]:
        return [float(value) for value in self.vectors["weights"][0]]


def test_a_request_that_is_repeated_is_answered_again_but_carried_out_once():
    shard = Shard()
    operations = scale("weights", 2.0), dot("weights", "weights")
    assert shard.operate(1, *operations) == shard.operate(1, *operations) == {"values": [12.0]}
    assert shard.weights == [2.0, 2.0, 2.0]


def test_whoever_asked_gets_a_copy_of_the_weights_after_each_iteration():
    seen: list[tuple[int, list[torch.Tensor]]] = []
    shard = Shard(after=lambda *told: seen.append(told))
    for iteration in (0, 1):
        shard.ask(COORDINATOR, MessageKind.KEEP, incarnation=shard.incarnation, iteration=iteration, notes={})
        shard.operate(iteration + 1, scale("weights", 2.0))
    assert [(iteration, weights[0].tolist()) for iteration, weights in seen] == [(0, [1.0] * 3), (1, [2.0] * 3)]


def test_a_request_that_was_left_out_is_missed():
    shard = Shard()
    with pytest.raises(MalformedError, match="request 1 must be next, but got 2"):
        shard.operate(2, scale("weights", 2.0))
    assert shard.weights == [1.0, 1.0, 1.0]


def test_a_request_to_an_earlier_incarnation_changes_nothing():
    shard = Shard()
    shard.incarnation, real = "another", shard.incarnation
    assert shard.operate(1, scale("weights", 2.0)) == {"incarnation": real}
    assert shard.weights == [1.0, 1.0, 1.0]


def test_only_the_last_coordinator_is_obeyed():
    shard = Shard()
    shard.server.welcome(Caller(0, "next"))
    with pytest.raises(RefusedError, match="only the current coordinator may send"):
        shard.operate(1, scale("weights", 2.0))
    with pytest.raises(RefusedError, match="only the current coordinator may send DONE"):
        shard.ask(REPLICA, MessageKind.DONE)


def test_the_copy_of_a_portion_that_the_coordinator_names_enters_the_gradient():
    shard = Shard()
    shard.operate(1, zero("gradient"), open="first")
    shard.push(REPLICA, 0, 1.0)
    shard.push(TWIN, 0, 10.0)
    shard.push(TWIN, 1, 100.0)
    shard.operate(2, count=[[0, "b"], [1, "b"]])
    shard.push(REPLICA, 0, 1.0)
    assert shard.vectors["gradient"][0].tolist() == [110.0] * 3
    with pytest.raises(MalformedError, match="must have been pushed"):
        shard.operate(3, count=[[0, "a"]])


def test_weights_and_gradients_are_of_the_evaluation_that_is_open():
    shard = Shard()
    shard.operate(1, zero("gradient"), open="first")
    assert shard.ask(REPLICA, MessageKind.PULL, evaluation="first") == {"over": False}
    shard.operate(2, zero("gradient"), open="second")
    assert shard.ask(REPLICA, MessageKind.PULL, evaluation="first") == {"over": True}
    assert shard.push(REPLICA, 0, 1.0) == {"over": True}
    with pytest.raises(MalformedError, match="must have been pushed"):
        shard.operate(3, count=[[0, "a"]])


def test_going_back_restores_every_vector_and_forgets_what_came_after(tmp_path):
    shard = Shard(Checkpoints(directory=tmp_path, every=2))
    shard.operate(1, copy("s0", "weights"))
    for iteration in range(7):
        shard.ask(
            COORDINATOR,
            MessageKind.KEEP,
            incarnation=shard.incarnation,
            iteration=iteration,
            notes={"iteration": iteration},
        )
        shard.operate(iteration + 2, scale("weights", 2.0), scale("s0", 3.0), copy("later", "weights"))
    assert shard.server.num_checkpoints == 4
    assert shard.ask(COORDINATOR, MessageKind.KEPT) == {"kept": [4, 6]}
    answer = shard.ask(COORDINATOR, MessageKind.RESTORE, iteration=4)
    assert answer["notes"] == {"iteration": 4}
    assert answer["incarnation"] != shard.incarnation
    assert shard.weights == [2.0**4] * 3
    assert shard.vectors["s0"][0].tolist() == [3.0**4] * 3
    # Iteration 6 belongs to a way that was not taken.
    assert shard.ask(COORDINATOR, MessageKind.KEPT) == {"kept": [4]}


def test_going_back_to_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="iteration 3 must be on disk"):
        Shard(Checkpoints(directory=tmp_path)).ask(COORDINATOR, MessageKind.RESTORE, iteration=3)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    checkpoints, vectors = Checkpoints(directory=tmp_path, every=1), Shard().vectors
    ShardCheckpoints(checkpoints, shard=0, num_shards=1, digest="other").keep(0, vectors, {})
    with pytest.raises(MethodError, match="must be a checkpoint of this model"):
        ShardCheckpoints(checkpoints, shard=0, num_shards=1, digest="this").restore(0, vectors)
