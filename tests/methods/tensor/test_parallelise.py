"""A split model trains as the unsplit one does: loss, every gradient, every weight."""

from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.tensor.models import GPT, GPT_PLAN, Block, Outcome, gather, tokens_of, train_alone
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from sandtable.errors import MethodError
from sandtable.methods.data import DataParallel
from sandtable.methods.tensor import TensorParallel, TensorPlan


def _make_gpt(**settings: int) -> GPT:
    torch.manual_seed(3)
    return GPT(**settings).double()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _train_gpt(sequence_parallel: bool) -> Outcome:
    model = _make_gpt()
    # What a rank has by itself must not matter: all take the first one's.
    torch.manual_seed(torch.distributed.get_rank())
    if torch.distributed.get_rank() > 0:
        nn.init.ones_(model.positions.weight)
    parallel = TensorParallel(model, plan=GPT_PLAN, sequence_parallel=sequence_parallel)
    optimizer = _optimizer(model)
    losses = []
    for step in range(3):
        tokens, targets = tokens_of(step)
        optimizer.zero_grad()
        loss = parallel.cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return gather(model, parallel, losses, is_tied=model.head.weight is model.words.weight)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_gpt_with_tied_embedding_trains_as_in_one_process(world, sequence_parallel):
    alone = train_alone(_make_gpt())
    for outcome in run(world, _train_gpt, sequence_parallel):
        outcome.check_equal(alone)
        assert outcome.notes["is_tied"]


def _accumulate(sequence_parallel: bool) -> Outcome:
    """Return one step's gradients of two halves of a batch, with a backward pass each."""
    model = _make_gpt()
    parallel = TensorParallel(model, plan=GPT_PLAN, sequence_parallel=sequence_parallel)
    tokens, targets = tokens_of(0)
    for half in (slice(0, 2), slice(2, 4)):
        (parallel.cross_entropy(model(tokens[half]), targets[half]) / 2).backward()
    return gather(model, parallel, [])


def test_gradients_add_up_over_several_backward_passes():
    alone = train_alone(_make_gpt(), num_steps=1)
    for outcome in run(2, _accumulate, True):
        for name, gradient in outcome.gradients.items():
            torch.testing.assert_close(gradient, alone.gradients[name], msg=f"{name} differs")


def _train_on_mesh(sequence_parallel: bool) -> Outcome:
    """Train two replicas, each split over two ranks; a replica sees half of the batch."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _make_gpt()
    split = TensorParallel(model, plan=GPT_PLAN, group=mesh["tp"].get_group(), sequence_parallel=sequence_parallel)
    replicas = DataParallel(model, _optimizer(model), group=mesh["dp"].get_group())
    half = slice(2 * mesh["dp"].get_local_rank(), 2 * mesh["dp"].get_local_rank() + 2)
    losses = []
    for step in range(3):
        tokens, targets = tokens_of(step)
        loss = split.cross_entropy(model(tokens[half]), targets[half])
        loss.backward()
        replicas.step()
        losses.append(loss.item())
    replicas.close()
    return gather(model, split, losses)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_data_and_tensor_parallel_together_train_as_one_process(sequence_parallel):
    alone = train_alone(_make_gpt())
    outcomes = run(4, _train_on_mesh, sequence_parallel)
    for name, weight in alone.weights.items():
        for outcome in outcomes:
            torch.testing.assert_close(outcome.weights[name], weight, rtol=0, atol=1e-9, msg=f"{name} differs")
    means = [(first + second) / 2 for first, second in zip(outcomes[0].losses, outcomes[2].losses, strict=True)]
    torch.testing.assert_close(torch.tensor(means), torch.tensor(alone.losses))


def _count(sequence_parallel: bool) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Return the collectives forward and backward, of two layers and of three."""
    found = []
    for num_layers in (2, 3):
        model = _make_gpt(num_layers=num_layers)
        for block in model.blocks:
            block.attention.head_norm = nn.Identity()  # type: ignore[union-attr]
        parallel = TensorParallel(model, plan=GPT_PLAN, sequence_parallel=sequence_parallel)
        parallel.traffic.reset()
        tokens, targets = tokens_of(0)
        loss = parallel.cross_entropy(model(tokens), targets)
        forward = dict(parallel.traffic.calls)
        parallel.traffic.reset()
        loss.backward()
        found.append((forward, dict(parallel.traffic.calls)))
    return found


def test_a_layer_costs_two_all_reduces_forward_and_two_backward():
    (of_two, of_three), _ = run(2, _count, False)
    # Beside the layers: embedding, the two of cross-entropy; backward the head's input.
    assert of_two == ({"all-reduce": 4 + 3}, {"all-reduce": 4 + 1})
    assert of_three == ({"all-reduce": 6 + 3}, {"all-reduce": 6 + 1})


def test_sequence_parallelism_makes_each_all_reduce_its_two_halves():
    (of_two, of_three), _ = run(2, _count, True)
    forward, backward = (_difference(more, less) for more, less in zip(of_three, of_two, strict=True))
    assert forward == {"all-gather": 2, "reduce-scatter": 2}
    # Two norms with weight and bias, and two biases that are added once.
    assert backward == {"all-gather": 2, "reduce-scatter": 2, "all-reduce": 6}


def _difference(more: dict[str, int], less: dict[str, int]) -> dict[str, int]:
    return {kind: more[kind] - less[kind] for kind in more if more[kind] != less[kind]}


def _save_and_load() -> dict[str, Any]:
    torch.manual_seed(8)
    start = GPT()
    whole = {name: tensor.clone() for name, tensor in start.state_dict().items()}
    first = TensorParallel(start, plan=GPT_PLAN)
    gathered = first.full_state_dict()
    torch.manual_seed(9)
    other = GPT()
    second = TensorParallel(other, plan=GPT_PLAN)
    second.load_full_state_dict(gathered)
    shares = {name: tensor.shape for name, tensor in other.state_dict().items()}
    return {"whole": whole, "gathered": gathered, "again": second.full_state_dict(), "shares": shares}


def test_the_state_of_the_whole_model_goes_in_and_comes_out():
    for found in run(2, _save_and_load):
        assert found["whole"].keys() == found["gathered"].keys() == found["again"].keys()
        for name, tensor in found["whole"].items():
            assert torch.equal(tensor, found["gathered"][name]), name
            assert torch.equal(tensor, found["again"][name]), name
        assert found["shares"]["head.weight"] == found["shares"]["words.weight"] == (16, 16)
        assert found["shares"]["blocks.0.attention.out.bias"] == (16,)


def _clip(max_norm: float) -> tuple[Tensor, Outcome]:
    model = _make_gpt()
    parallel = TensorParallel(model, plan=GPT_PLAN)
    tokens, targets = tokens_of(0)
    parallel.cross_entropy(model(tokens), targets).backward()
    norm = parallel.clip_grad_norm_(max_norm)
    return norm, gather(model, parallel, [])


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(max_norm):
    alone = train_alone(model := _make_gpt(), num_steps=1)
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for norm, outcome in run(2, _clip, max_norm):
        torch.testing.assert_close(norm, expected)
        for name, gradient in outcome.gradients.items():
            torch.testing.assert_close(gradient, alone.gradients[name], msg=f"{name} differs")


class _Twice(nn.Module):
    """Uses one norm both inside and outside the part with split tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), self.norm)


def _refusals() -> list[str]:
    told = []
    cases: tuple[tuple[nn.Module, dict[str, Any]], ...] = (
        (nn.Linear(2, 2), {}),
        (GPT(), {"plan": {"mlp.up": "column"}, "sequence_parallel": True}),
        (GPT(), {"plan": TensorPlan({"mlp.up": "column", "nothing.here": "row"})}),
        (GPT(num_layers=1), {"plan": {"attention": "heads", "mlp": "heads"}}),
        (nn.Sequential(nn.Transformer(6, 3, 1, 1, 8)), {}),
        (
            _Twice(),
            {
                "plan": TensorPlan({"inside.0": "column", "inside.1": "row"}, sequence=("inside",)),
                "sequence_parallel": True,
            },
        ),
        (nn.TransformerEncoderLayer(8, 2), {"sequence_parallel": True}),
        (nn.TransformerEncoderLayer(8, 2, device="meta"), {}),
        (GPT(), {"plan": {"words": "vocabulary", "head": "row"}}),
        (GPT(), {"plan": GPT_PLAN.without("head")}),
        (GPT(), {"plan": GPT_PLAN.without("words")}),
        (
            nn.ModuleList([block := Block(), block]),
            {"plan": TensorPlan({"mlp.up": "column"}, sequence=("0", "1")), "sequence_parallel": True},
        ),
    )
    for model, settings in cases:
        with pytest.raises(MethodError) as error:
            TensorParallel(model, **settings)
        told.append(str(error.value))
    model = _make_gpt()
    TensorParallel(model, plan=GPT_PLAN, sequence_parallel=True)
    with pytest.raises(MethodError) as error:
        model(tokens_of(0, length=7)[0])
    return [*told, str(error.value)]


def test_what_cannot_be_split_is_refused_with_the_remedy():
    unknown, sequence, unused, headless, uneven, twice, no_layers, meta, unalike, head, words, again, tokens = run(
        2, _refusals
    )[0]
    assert "must have known layers" in unknown
    assert "Linear has none; name its layers: plan=" in unknown
    assert "the plan does not say; give it TensorPlan(..., sequence=" in sequence
    assert "every pattern of a plan must match a module, but ['nothing.here'] match none" in unused
    assert "must have an attribute that counts them, but blocks.0.mlp (MLP) has none of num_heads" in headless
    assert "the number of ranks (2) must divide the heads of 0.encoder.layers.0.self_attn, but got 3; " in uneven
    assert "try a group of 1 or 3 ranks" in uneven
    assert "must not be used both inside and outside split work" in twice
    assert "('layers.*',) match none of TransformerEncoderLayer" in no_layers
    assert "must have its weights when it is split, but some are on the meta device" in meta
    assert "must split it the same way, but head splits it along dim 1 and another along dim 0;" in unalike
    assert "must split it the same way, but head.weight is left whole and another layer splits it" in head
    assert "must split it the same way, but words.weight is left whole and another layer splits it" in words
    assert "must occur in the model once, but one of them (Block) has several names" in again
    assert "must divide the number of tokens of a sequence, but got 7 in dim 1; pad them to 8" in tokens
