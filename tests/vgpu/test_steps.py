"""Where steps end: each script reports the steps that a person would name."""

from collections import Counter
from collections.abc import Callable

import pytest
from tests.vgpu.virtual import Rehearsal, rehearse

from sandtable.trace import Kind, Phase, Trace

ROUNDS = 12
"""How often the scripts loop: more often than steps are captured."""


def products(trace: Trace) -> list[Counter[str]]:
    """Return, for each step of rank 0, how many matrix products each phase runs."""
    view = trace.rank(0)
    return [
        Counter(op.phase.name.lower() for op in view.operators(rows) if op.signature.op in ("aten::mm", "aten::addmm"))
        for rows in view.step_slices()
    ]


def optimizer_work(trace: Trace) -> list[int]:
    """Return, for each step of rank 0, how many operators are the optimizer's."""
    view = trace.rank(0)
    records = view.records
    is_optimizer = (records.kind == Kind.OPERATOR) & (records.phase == Phase.OPTIMIZER)
    return [int(is_optimizer[rows].sum()) for rows in view.step_slices()]


def layer():
    import torch

    return torch.nn.Linear(64, 64).cuda()


def loss(model, *, passes=1):
    import torch

    x = torch.rand(8, 64, device="cuda")
    for _ in range(passes):
        x = model(x)
    return x.square().mean()


def reports_how_it_ends():
    import torch

    model = layer()
    optimizer = torch.optim.SGD(model.parameters())
    try:
        for step in range(ROUNDS):
            loss(model).backward()
            optimizer.step()
            print("step", step)
    except BaseException as error:
        print("training failed:", error)
        raise


def gan(critics=1):
    import torch

    critic, generator = layer(), layer()
    first, second = (torch.optim.Adam(model.parameters()) for model in (critic, generator))
    for _ in range(ROUNDS):
        for _ in range(critics):
            first.zero_grad()
            critic(generator(torch.rand(8, 64, device="cuda")).detach()).mean().backward()
            first.step()
        second.zero_grad()
        critic(generator(torch.rand(8, 64, device="cuda"))).mean().backward()
        second.step()


@pytest.mark.parametrize("critics", [1, 5])
def test_a_step_of_a_gan_is_one_of_its_generator_and_those_of_its_critic(critics: int):
    trace = rehearse(gan, steps=3, arguments={"critics": critics}).trace
    assert [step["forward"] for step in products(trace)] == 3 * [2 * critics + 2]


def optimizer_made_anew(keeps):
    import torch

    model, kept = layer(), []
    for step in range(ROUNDS):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.9**step)
        kept += [optimizer] * keeps
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("keeps", [False, True])
def test_an_optimizer_that_is_made_anew_goes_on_counting(keeps: bool):
    trace = rehearse(optimizer_made_anew, steps=3, arguments={"keeps": keeps}).trace
    assert [step["forward"] for step in products(trace)] == [1, 1, 1]


def lbfgs():
    import torch

    model = layer()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        return value

    for _ in range(ROUNDS):
        optimizer.step(closure)


def test_what_a_closure_computes_is_forward_and_backward():
    run = rehearse(lbfgs, steps=3)
    assert products(run.trace) == 3 * [Counter(forward=4, backward=4)]
    assert min(optimizer_work(run.trace)) > 0
    assert "max_iter" in run.notes("LBFGS")[0].text


class HandMadeSGD:
    """An optimizer that torch knows nothing of."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        for parameter in self.parameters:
            parameter.data.mul_(0.99)
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None


def hand_made_optimizer():
    model = layer()
    optimizer = HandMadeSGD(model.parameters())
    for _ in range(ROUNDS):
        loss(model).backward()
        optimizer.step()


def update_in_the_loop():
    import torch

    weight = torch.rand(64, 64, device="cuda", requires_grad=True)
    for _ in range(ROUNDS):
        (gradient,) = torch.autograd.grad((torch.rand(8, 64, device="cuda") @ weight).sum(), weight)
        with torch.no_grad():
            weight -= 0.1 * gradient


def update_with_foreach():
    import torch

    model = layer()
    frozen = layer()  # its copy of the weights is written, too, but no backward pass reaches it
    for _ in range(ROUNDS):
        loss(model).backward()
        weights = list(model.parameters())
        with torch.no_grad():
            torch._foreach_add_(weights, [weight.grad for weight in weights], alpha=-0.1)
            for target, weight in zip(frozen.parameters(), weights, strict=True):
                target.copy_(weight)
        model.zero_grad()
        loss(frozen).item()


@pytest.mark.parametrize(
    ("script", "num_updates"), [(hand_made_optimizer, 4), (update_in_the_loop, 2), (update_with_foreach, 1)]
)
def test_updates_without_an_optimizer_of_torch_end_steps(script: Callable[[], None], num_updates: int):
    trace = rehearse(script, steps=3).trace
    assert trace.num_steps == 3
    assert optimizer_work(trace) == 3 * [num_updates]
    assert [step["optimizer"] for step in products(trace)] == [0, 0, 0]


def gan_by_hand():
    models = layer(), layer()
    optimizers = [HandMadeSGD(model.parameters()) for model in models]
    for _ in range(ROUNDS):
        for passes, (model, optimizer) in enumerate(zip(models, optimizers, strict=True), 1):
            loss(model, passes=passes).backward()
            optimizer.step()


def test_two_models_updated_in_turn_make_one_step():
    assert [step["forward"] for step in products(rehearse(gan_by_hand, steps=3).trace)] == [3, 3, 3]


def accumulation():
    import torch

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(ROUNDS):
        for _ in range(4):
            loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def optimizers_in_backward():
    import torch
    from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward

    model = torch.nn.Sequential(layer(), layer(), layer(), layer())
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    for _ in range(ROUNDS):
        loss(model).backward()


def sharded_optimizer():
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("nccl")
    model = torch.nn.Sequential(layer(), layer(), layer(), layer())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    for _ in range(ROUNDS):
        loss(model).backward()
        optimizer.step()


@pytest.mark.parametrize("script", [accumulation, optimizers_in_backward, sharded_optimizer])
def test_four_passes_and_one_update_are_one_step(script: Callable[[], None]):
    trace = rehearse(script, steps=3).trace
    assert [step["forward"] for step in products(trace)] == [4, 4, 4]
    assert min(optimizer_work(trace)) > 0


def evaluation():
    import torch

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(ROUNDS):
        loss(model).backward()
        optimizer.step()
        if number % 2 == 0:
            with torch.no_grad():
                loss(model, passes=20).item()


def test_an_evaluation_is_part_of_the_step_in_which_it_falls():
    assert [step["forward"] for step in products(rehearse(evaluation, steps=4).trace)] == [1, 21, 1, 21]


def marked(times):
    import torch

    import sandtable

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(ROUNDS):
        for _ in range(2):
            loss(model).backward()
            optimizer.step()
            if times == 2:
                sandtable.step()
        if times == 1:
            sandtable.step()


@pytest.mark.parametrize("times", [1, 2])
def test_where_a_script_marks_its_steps_nothing_else_ends_them(times: int):
    trace = rehearse(marked, steps=4, arguments={"times": times}).trace
    assert [step["forward"] for step in products(trace)] == 4 * [2 // times]


def train(model, optimizer):
    loss(model).backward()
    optimizer.step()
    loss(model).backward()
    optimizer.step()


def in_a_function():
    import torch

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(ROUNDS):
        train(model, optimizer)


def test_every_return_of_the_marker_ends_a_step():
    trace = rehearse(in_a_function, steps=3, marker=f"{__name__}:train").trace
    assert [step["forward"] for step in products(trace)] == [2, 2, 2]


def scaled():
    """Gradients that are not finite, whatever the values."""
    import torch

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler()
    for _ in range(3):
        scaler.scale(loss(model)).backward()
        scaler.unscale_(optimizer)
        for found in scaler._found_inf_per_device(optimizer).values():
            found.fill_(1.0)
        scaler.step(optimizer)
        scaler.update()


def only_forward():
    for _ in range(3):
        loss(layer())


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        (scaled, ["GradScaler skipped 3 updates", "3 backward passes ran; 1 optimizer was made, but it never stepped"]),
        (only_forward, ["no backward pass ran, and nothing updated the parameters"]),
    ],
)
def test_a_script_without_steps_is_explained(script: Callable[[], None], texts: list[str]):
    run = rehearse(script, steps=3)
    assert run.trace.num_steps == 0
    assert [note.text for kind in ("skipped updates", "no steps") for note in run.notes(kind)] == texts


def ten_thousand_steps():
    import torch

    weight = torch.nn.Parameter(torch.rand(4, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    for _ in range(10_000):
        weight.sum().backward()
        optimizer.step()


def test_ten_thousand_steps_are_captured_or_left_alone():
    assert rehearse(ten_thousand_steps, steps=3).trace.num_steps == 3
    run: Rehearsal = rehearse(ten_thousand_steps, steps=10_000, max_operators=1000)
    assert (run.trace.num_steps, len(run.trace.rank(0).step_slices())) == (10_000, 10_000)


def call_the_engine_by_keyword():
    import torch
    from torch.autograd import Variable

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        output = model(torch.ones(8, 64, device="cuda"))
        Variable._execution_engine.run_backward(
            tensors=(output,),
            grad_tensors=(torch.ones_like(output),),
            keep_graph=False,
            create_graph=False,
            inputs=(),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        optimizer.step()


def test_a_backward_pass_may_call_the_engine_by_keyword_as_megatron_does():
    assert [step["backward"] for step in products(rehearse(call_the_engine_by_keyword).trace)] == [1, 1]


def test_a_script_that_is_ended_says_nothing_more():
    assert [text for _, text in rehearse(reports_how_it_ends, steps=2).out] == ["step 0", "step 1"]


def evaluates_with_transforms_in_workers():
    import torch

    prepare = torch.nn.Identity()  # a transform, as torchvision's are

    class Samples(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return prepare(torch.ones(64))

    model = layer()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        loss(model).backward()
        optimizer.step()
    for batch in torch.utils.data.DataLoader(Samples(), num_workers=1):
        model(batch.cuda())


def test_the_stop_is_the_ranks_and_not_that_of_workers_it_forks():
    assert rehearse(evaluates_with_transforms_in_workers, steps=3).trace.num_steps == 3
