"""PowerSGD: low-rank gradients, averaged in two calls."""

import pytest
import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data import PowerSGD

SHAPES = [torch.Size(shape) for shape in ((40, 30), (7,), (16, 3, 3, 3), (2, 2), (), (0, 5))]


def gradients_of(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


class Meeting:
    """The mean of several workers without a network: each hands in what it has, in turn, twice a step."""

    def __init__(self, settings: PowerSGD, num_workers: int, dtype: torch.dtype = torch.float32) -> None:
        self.reducers = [settings.reducer(SHAPES, dtype, seed=5) for _ in range(num_workers)]
        self.num_calls = 0
        self.num_bytes = 0

    def reduce(self, gradients: list[list[Tensor]]) -> None:
        """Run call 0 of all workers, then call 1, replaying what earlier calls returned."""
        results: list[Tensor] = []
        for call in range(3):
            handed: list[Tensor] = []
            copies = [[each.clone() for each in worker] for worker in gradients]
            states = [reducer.state_dict() for reducer in self.reducers]
            for worker, reducer in zip(copies, self.reducers, strict=True):
                replies = iter(results)

                def mean(tensor: Tensor, replies=replies, handed=handed) -> None:
                    reply = next(replies, None)
                    if reply is None:
                        handed.append(tensor.clone())
                    else:
                        tensor.copy_(reply)

                reducer.reduce(worker, mean)
            if call < 2:
                # A worker hands in its own first open call, and a second that means nothing yet.
                first = handed[:: max(len(handed) // len(copies), 1)]
                results.append(torch.stack(first).mean(0))
                self.num_bytes += results[-1].nbytes
                for reducer, state in zip(self.reducers, states, strict=True):
                    reducer.load_state_dict(state)
            else:
                assert not handed
        self.num_calls = len(results)
        for ours, new in zip(gradients, copies, strict=True):
            for target, each in zip(ours, new, strict=True):
                target.copy_(each)


def test_all_workers_get_the_same_of_the_rank_asked_for() -> None:
    meeting = Meeting(PowerSGD(2), 3)
    gradients = [gradients_of(seed) for seed in range(3)]
    expected = [torch.stack(each).mean(0) for each in zip(*gradients, strict=True)]
    meeting.reduce(gradients)
    for worker in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(worker, gradients[0], strict=True))
    assert torch.linalg.matrix_rank(gradients[0][0]) == 2
    for k in (1, 3, 4, 5):  # too small to compress: the plain mean
        torch.testing.assert_close(gradients[0][k], expected[k])


def test_bytes_are_those_of_the_formula() -> None:
    meeting = Meeting(PowerSGD(2), 2)
    meeting.reduce([gradients_of(seed) for seed in range(2)])
    exact = 4 * ((40 + 30) * 2 + (16 + 27) * 2 + 7 + 4 + 1)
    assert meeting.num_bytes == meeting.reducers[0].message_bytes == exact
    assert PowerSGD(2).message_bytes(10_000, torch.float32) == 4 * 2 * 200


def test_error_feedback_loses_nothing() -> None:
    meeting = Meeting(PowerSGD(2), 2)
    given = torch.zeros(40, 30)
    sent = torch.zeros(40, 30)
    for step in range(10):
        gradients = [gradients_of(10 * step + worker) for worker in range(2)]
        given += (gradients[0][0] + gradients[1][0]) / 2
        meeting.reduce(gradients)
        sent += gradients[0][0]
    residual = sum(reducer.state_dict()["residuals"][0] for reducer in meeting.reducers) / 2
    torch.testing.assert_close(sent + residual, given, rtol=0, atol=1e-4)


def test_a_gradient_of_low_rank_is_found_by_the_warm_start() -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(50, 2, generator=generator) @ torch.randn(2, 60, generator=generator)
    reducer = PowerSGD(2, error_feedback=False).reducer([gradient.shape], torch.float32)
    reduced = gradient.clone()
    reducer.reduce([reduced], lambda tensor: None)
    torch.testing.assert_close(reduced, gradient, rtol=1e-3, atol=1e-3)
    noisy = gradient + 0.05 * torch.randn(50, 60, generator=generator)
    errors = []
    warm = PowerSGD(2, error_feedback=False).reducer([gradient.shape], torch.float32, seed=3)
    for _ in range(4):
        reduced = noisy.clone()
        warm.reduce([reduced], lambda tensor: None)
        errors.append((reduced - noisy).norm().item())
    best = (torch.linalg.svdvals(noisy)[2:] ** 2).sum().sqrt().item()
    assert errors[-1] <= errors[0]
    assert errors[-1] == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("warm_start", [False, True])
def test_saved_state_goes_on(warm_start) -> None:
    settings = PowerSGD(2, warm_start=warm_start)
    first = settings.reducer(SHAPES, torch.float32, seed=1)
    first.reduce(gradients_of(1), lambda tensor: None)
    saved = first.state_dict()
    second = settings.reducer(SHAPES, torch.float32, seed=1)
    second.load_state_dict(saved)
    results = []
    for reducer in (first, second):
        gradients = gradients_of(2)
        reducer.reduce(gradients, lambda tensor: None)
        results.append(gradients)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_worked_on_in_enough_precision(dtype) -> None:
    reducer = PowerSGD(2).reducer(SHAPES, dtype)
    gradients = gradients_of(1, dtype)
    reducer.reduce(gradients, lambda tensor: None)
    assert all(gradient.dtype == dtype and gradient.isfinite().all() for gradient in gradients)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(MethodError, match="AllReduce"):
        PowerSGD(2).codec(10, torch.float32)
    with pytest.raises(MethodError, match="rank"):
        PowerSGD(0)
    reducer = PowerSGD(2).reducer(SHAPES, torch.float32)
    with pytest.raises(MethodError, match="shapes"):
        reducer.reduce(gradients_of(0)[:2], lambda tensor: None)
    bad = gradients_of(0)
    bad[0][1, 1] = torch.nan
    with pytest.raises(MethodError, match="finite"):
        reducer.reduce(bad, lambda tensor: None)
