"""L-BFGS on shards takes the same steps as SciPy's L-BFGS-B, evaluation by evaluation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import fmin_l_bfgs_b
from tests.methods.distbelief import problems
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.server import (
    LBFGS,
    Ending,
    LineSearch,
    LocalSpace,
    NamedVectors,
    Progress,
    VectorSpace,
    minimize,
)

AS_SCIPY = LineSearch(decrease=1e-3)
PROBLEMS = {
    "logistic regression": problems.logistic_regression,
    "small network": problems.small_network,
    "small network, steep": lambda: problems.small_network(scale=1000.0),
    "small network, flat": lambda: problems.small_network(scale=0.001),
    "rosenbrock": problems.rosenbrock,
    "waves": problems.waves,
    "quartic": problems.quartic,
}


class Shards:
    """A function on shards in this process, with every point it was evaluated at."""

    def __init__(self, function: problems.Function, start: Tensor, num_shards: int) -> None:
        self._function = function
        self.vectors = [NamedVectors([part.clone()]) for part in torch.tensor_split(start, num_shards)]
        self.space = LocalSpace(self.vectors)
        self.evaluated: list[Tensor] = []

    @property
    def weights(self) -> Tensor:
        return torch.cat([shard["weights"][0] for shard in self.vectors])

    def evaluate(self) -> float:
        weights = self.weights
        self.evaluated.append(weights)
        loss, gradient = self._function(weights)
        for shard, part in zip(self.vectors, torch.tensor_split(gradient, len(self.vectors)), strict=True):
            shard.load_state_dict({**shard.state_dict(), "gradient": [part]})
        return loss


def scipy_run(
    function: problems.Function, start: Tensor, iterations: int, history: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    evaluated: list[np.ndarray] = []
    iterates: list[np.ndarray] = []

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        evaluated.append(x.copy())
        loss, gradient = function(torch.from_numpy(x.copy()))
        return loss, gradient.numpy()

    def note(x: np.ndarray) -> None:
        iterates.append(x.copy())

    fmin_l_bfgs_b(evaluate, start.numpy(), m=history, factr=0, pgtol=0, maxiter=iterations, callback=note)
    return evaluated, iterates


@pytest.mark.parametrize("history", [3, 10])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_first_twenty_iterates_are_scipys(problem, history):
    function, start = PROBLEMS[problem]()
    evaluated, iterates = scipy_run(function, start, 20, history)
    shards, ours = Shards(function, start, 3), []
    settings = LBFGS(history=history, max_iterations=20, gradient_tolerance=0.0, loss_tolerance=0.0, search=AS_SCIPY)
    minimize(shards.space, shards.evaluate, settings, after=lambda _: ours.append(shards.weights))
    assert len(iterates) == len(ours) - 1 == 20
    np.testing.assert_allclose(torch.stack(ours[1:]), iterates, rtol=0, atol=1e-8)
    # Not only where it arrived: every trial of every search.
    assert len(evaluated) == len(shards.evaluated)
    np.testing.assert_allclose(torch.stack(shards.evaluated), evaluated, rtol=0, atol=1e-8)


def test_it_ends_at_a_minimum():
    function, start = problems.rosenbrock()
    shards = Shards(function, start, 2)
    progress = minimize(shards.space, shards.evaluate, LBFGS(max_iterations=200, loss_tolerance=0.0))
    assert progress.ending is Ending.GRADIENT
    assert progress.gradient_norm <= 1e-6
    assert function(shards.weights)[1].abs().max() <= 1e-6
    assert progress.num_evaluations == len(shards.evaluated)


def test_it_ends_after_the_iteration_in_which_it_has_evaluated_often_enough():
    function, start = problems.rosenbrock()
    shards, seen = Shards(function, start, 2), []
    settings = LBFGS(max_evaluations=12)
    progress = minimize(shards.space, shards.evaluate, settings, after=lambda p: seen.append(p.num_evaluations))
    assert progress.ending is Ending.EVALUATIONS
    assert seen[-2] < 12 <= seen[-1] == progress.num_evaluations
    with pytest.raises(MethodError, match="max_evaluations must be 1 or more, but got 0; None sets no limit"):
        LBFGS(max_evaluations=0)


def test_the_number_of_shards_does_not_matter():
    function, start = problems.small_network()
    ends = []
    for num_shards in (1, 4):
        shards = Shards(function, start, num_shards)
        minimize(shards.space, shards.evaluate, LBFGS(max_iterations=30))
        ends.append(shards.weights)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-9)


def test_a_direction_takes_two_messages_a_pair_and_one_more():
    function, start = problems.small_network()
    shards = Shards(function, start, 1)
    num_messages = 0

    class Counting(VectorSpace):
        def run(self, operations):
            nonlocal num_messages
            num_messages += 1
            return shards.space.run(operations)

    settings, seen = LBFGS(history=5, max_iterations=12), []
    minimize(Counting(), shards.evaluate, settings, after=lambda p: seen.append((num_messages, p.num_evaluations)))
    # 2m + 1 for the direction, 3 more an iteration, and 2 an evaluation.
    for iteration in range(6, 12):
        messages, evaluations = np.subtract(seen[iteration + 1], seen[iteration])
        assert messages == 2 * 5 + 4 + 2 * evaluations


def test_it_goes_on_from_notes_and_vectors_as_if_it_had_never_stopped():
    function, start = problems.rosenbrock()
    settings = LBFGS(history=4, max_iterations=30)
    kept: dict[str, Any] = {}
    whole = Shards(function, start, 2)

    def keep(progress: Progress) -> None:
        if progress.iteration == 12:
            kept["notes"] = progress.to_notes()
            kept["vectors"] = [
                {name: [tensor.clone() for tensor in tensors] for name, tensors in shard.state_dict().items()}
                for shard in whole.vectors
            ]

    minimize(whole.space, whole.evaluate, settings, after=keep)
    resumed = Shards(function, torch.zeros(6, dtype=torch.float64), 2)
    for shard, vectors in zip(resumed.vectors, kept["vectors"], strict=True):
        shard.load_state_dict(vectors)
    progress = minimize(
        resumed.space, resumed.evaluate, settings, progress=Progress.from_notes(kept["notes"], settings)
    )
    assert progress.iteration == 30
    assert torch.equal(resumed.weights, whole.weights)
    assert progress.num_evaluations == len(whole.evaluated)


def test_a_gradient_that_is_wrong_ends_it_where_it_began():
    def uphill(weights: Tensor) -> tuple[float, Tensor]:
        return weights.square().sum().item(), -2 * weights

    start = torch.ones(4, dtype=torch.float64)
    shards = Shards(uphill, start, 2)
    progress = minimize(shards.space, shards.evaluate, LBFGS())
    assert progress.ending is Ending.SEARCH
    assert progress.iteration == 0
    assert torch.equal(shards.weights, start)


def test_a_loss_that_is_not_finite_is_an_error():
    def logarithm(weights: Tensor) -> tuple[float, Tensor]:
        return torch.log(weights).sum().item(), 1 / weights

    shards = Shards(logarithm, torch.full((2,), 0.5, dtype=torch.float64), 1)
    with pytest.raises(MethodError, match="must be finite, but is nan in iteration 1"):
        minimize(shards.space, shards.evaluate, LBFGS())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LBFGS(history=0), r"history and max_iterations must be 1 or more, but got \(0, 100\)"),
        (lambda: LBFGS(loss_tolerance=-1.0), "tolerances must be 0 or more"),
        (lambda: LineSearch(decrease=0.95), "0 < decrease < curvature < 1 must hold"),
        (lambda: LineSearch(max_evaluations=0), "must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], object], message):
    with pytest.raises(MethodError, match=message):
        make()
