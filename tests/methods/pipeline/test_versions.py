"""Weights that minibatches in flight need are kept unchanged; nothing else is copied."""

import torch
from torch import nn

from sandtable.methods.pipeline.versions import Versions


def versions_of(module, **settings):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, **settings)
    return Versions(module, optimizer, on_gradient=lambda index: None)


def give_gradients(module, value=1.0):
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_a_version_that_is_taken_survives_updates():
    module = nn.Linear(2, 2)
    versions = versions_of(module)
    before = module.weight.detach().clone()
    taken = versions.take(0)
    for _ in range(3):
        give_gradients(module)
        versions.update(keep_from=versions.latest + 1)
    assert torch.equal(taken.weights["weight"], before)
    assert torch.allclose(module.weight, before - 1.5)
    assert versions.num_held == 2
    assert versions.latest == 3


def test_a_version_nobody_needs_is_updated_where_it_is():
    module = nn.Linear(2, 2)
    versions = versions_of(module)
    memory = module.weight.data_ptr()
    for _ in range(3):
        versions.release(versions.take(versions.latest))
        give_gradients(module)
        versions.update(keep_from=versions.latest + 1)
    assert module.weight.data_ptr() == memory
    assert versions.most_held == 1


def test_only_parameters_that_change_are_copied():
    module = nn.Linear(2, 2)
    versions = versions_of(module)
    memory = module.bias.data_ptr()
    old = versions.take(0)
    module.weight.grad = torch.ones_like(module.weight)
    versions.update(keep_from=1)
    assert module.bias.data_ptr() == memory
    # Now the bias changes while nobody uses version 1, but version 0 has the same bias.
    bias = module.bias.detach().clone()
    give_gradients(module)
    versions.update(keep_from=2)
    assert torch.equal(old.weights["bias"], bias)
    assert torch.allclose(module.bias, bias - 0.5)


def test_gradients_are_those_of_the_version_and_add_up_in_the_parameters():
    module = nn.Linear(3, 1, bias=False)
    versions = versions_of(module)
    first = versions.take(0)
    inputs = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    output = torch.func.functional_call(module, first.weights, (inputs,))
    weight = module.weight.detach().clone()
    give_gradients(module)
    versions.update(keep_from=1)
    module.zero_grad()
    (output * output).sum().backward()
    expected = 2 * (inputs.detach() @ weight.T)
    assert module.weight.grad is not None
    assert inputs.grad is not None
    assert torch.allclose(module.weight.grad, expected * inputs.detach())
    assert torch.allclose(inputs.grad, expected * weight)


def test_versions_that_will_be_asked_for_are_kept():
    module = nn.Linear(2, 2)
    versions = versions_of(module, momentum=0.9)
    for _ in range(4):
        give_gradients(module)
        versions.update(keep_from=2)
    assert versions.num_held == 3
    versions.release(versions.take(2))
    give_gradients(module)
    versions.update(keep_from=4)
    assert versions.num_held == 2
    versions.restart()
    assert (versions.latest, versions.num_held) == (0, 1)
