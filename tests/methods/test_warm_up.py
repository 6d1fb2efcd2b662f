"""The linear scaling rule with gradual warm-up."""

import pytest
import torch
from torch.optim.lr_scheduler import MultiStepLR

from sandtable.errors import MethodError
from sandtable.methods.data import WarmUp


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def _rates(num_epochs: int, *schedulers, optimizer) -> list[float]:
    found = []
    for _ in range(num_epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return found


def test_the_rate_rises_by_a_constant_each_epoch_and_then_stays():
    optimizer = _optimizer()
    rates = _rates(8, WarmUp(optimizer, scale=6), optimizer=optimizer)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6])


def test_it_may_rise_at_every_step():
    optimizer = _optimizer()
    rates = _rates(6, WarmUp(optimizer, scale=3, epochs=2, steps_per_epoch=2), optimizer=optimizer)
    assert rates == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3, 0.3])


def test_it_can_be_combined_with_a_decay():
    optimizer = _optimizer()
    schedulers = (WarmUp(optimizer, scale=2, epochs=2), MultiStepLR(optimizer, [3], gamma=0.1))
    assert _rates(5, *schedulers, optimizer=optimizer) == pytest.approx([0.1, 0.15, 0.2, 0.02, 0.02])


def test_it_goes_on_from_its_state():
    optimizer = _optimizer()
    scheduler = WarmUp(optimizer, scale=6)
    _rates(3, scheduler, optimizer=optimizer)
    saved, rate = scheduler.state_dict(), optimizer.state_dict()
    again = _optimizer()
    resumed = WarmUp(again, scale=6)
    resumed.load_state_dict(saved)
    again.load_state_dict(rate)
    assert _rates(3, resumed, optimizer=again) == pytest.approx([0.4, 0.5, 0.6])


def test_no_warm_up_starts_at_the_full_rate():
    optimizer = _optimizer()
    assert _rates(2, WarmUp(optimizer, scale=4, epochs=0), optimizer=optimizer) == pytest.approx([0.4, 0.4])


def test_an_impossible_scale_is_refused():
    with pytest.raises(MethodError, match="scale must be above 0"):
        WarmUp(_optimizer(), scale=0)
