"""What a script reads back: small values are real, unknown ones finite, and every read is on record."""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="index,union-attr"

import contextlib
import io
import math

import pytest
import torch
from tests.vgpu.virtual import Rehearsal, on_gpu, rehearse
from torch import nn

from sandtable.trace import Kind, SyncKind

CARD = torch.device("cuda:0")
BIG = 1 << 16


def syncs(done: Rehearsal) -> list[SyncKind]:
    records = done.trace.rank(0).records
    return [SyncKind(int(value)) for value in records.value[records.kind == Kind.HOST_SYNC]]


def unknown(*shape: int) -> torch.Tensor:
    return torch.rand(BIG, device=CARD)[: math.prod(shape)].view(shape)


# ---- known ----


@on_gpu()
def test_small_values_are_computed_for_real():
    counter = torch.zeros((), device=CARD, dtype=torch.long)
    for _ in range(5):
        counter += 2
    assert counter.item() == 10
    sizes = torch.tensor([3, 5, 7], device=CARD)
    assert sizes.max().item() == 7
    assert sizes.cumsum(0).tolist() == [3, 8, 15]
    assert int(sizes.sum()) == 15
    assert float(sizes.float().mean()) == 5
    assert bool((sizes > 2).all())
    assert [int(size) for size in sizes] == [3, 5, 7]
    assert list(range(sizes[0])) == [0, 1, 2]
    assert torch.equal(sizes, sizes.clone())
    assert f"{sizes[1]}" == "5"
    matrix = torch.eye(8, device=CARD) * 3
    assert (matrix @ matrix).trace().item() == 72


@on_gpu()
def test_token_ids_are_known_up_to_their_limit():
    tokens = torch.arange(131072, device=CARD)  # 1 MiB of integers
    assert tokens[-1].item() == 131071
    assert (tokens % 2 == 0).sum().item() == 65536
    assert tokens.view(16, 8192)[:, 0].tolist() == list(range(0, 131072, 8192))


@on_gpu()
def test_sequences_packed_into_a_batch_begin_where_positions_do():
    positions = torch.arange(4096, device=CARD).repeat(3, 1)  # 96 KiB
    starts = torch.where(positions.flatten() == 0)[0]
    assert starts.tolist() == [0, 4096, 8192]


@on_gpu()
def test_small_values_survive_the_way_through_the_card():
    values = torch.randn(16)
    assert torch.equal(values.cuda().cpu(), values)
    assert torch.equal(values.cuda().clone().view(4, 4).t().contiguous().cpu(), values.view(4, 4).t())
    assert torch.equal(values.cuda().to("cuda:1").cpu(), values)


@on_gpu()
def test_what_is_true_of_any_value_is_known_of_unknown_ones():
    x = unknown(4, 8)
    assert x.numel() == 32
    assert x.size(0) == 4
    assert x.dim() == 2
    assert x.new_zeros(3).tolist() == [0, 0, 0]
    assert torch.zeros_like(x).sum().item() == 0
    assert torch.ones_like(x).sum().item() == 32


@on_gpu()
def test_writing_a_known_part_of_something_unknown_leaves_the_rest_unknown():
    x = unknown(8)
    x[:4] = 7.0
    assert math.isfinite(x.sum().item())
    x.zero_()
    y = torch.zeros(8, device=CARD)
    y[2] = 5
    assert y.tolist() == [0, 0, 5, 0, 0, 0, 0, 0]
    y.add_(unknown(8))
    assert all(math.isfinite(value) for value in y.tolist())


# ---- unknown ----


@on_gpu()
def test_unknown_numbers_read_as_finite():
    loss = unknown(64, 64).square().mean()
    assert math.isfinite(loss.item())
    assert math.isfinite(float(loss))
    assert isinstance(int(unknown(4).sum()), int)
    assert not torch.isnan(loss).item()
    assert torch.isfinite(loss).item()
    assert not math.isinf(loss.item())
    assert 0 < math.exp(loss.item()) < 1e6
    assert not torch.isnan(unknown(128)).any()
    assert not torch.isinf(unknown(128)).any().item()
    assert torch.isfinite(unknown(128)).all()
    assert bool(torch.isfinite(unknown(BIG)).all())
    assert torch.isnan(unknown(BIG)).sum().item() == 0
    assert (unknown(BIG) != unknown(BIG)).sum().item() >= 0
    assert unknown(BIG).norm().item() > 0


@on_gpu()
def test_no_overflow_is_found_in_unknown_numbers():
    numbers = unknown(BIG)
    is_bad = numbers.isnan().logical_or(numbers.isinf())
    assert is_bad.float().max().item() == 0
    assert not is_bad.any()
    is_bad.fill_(True)
    assert is_bad.float().max().item() == 1


@on_gpu(ranks=2)
def test_no_rank_finds_an_overflow_in_unknown_numbers():
    torch.distributed.init_process_group("nccl")
    for found in (unknown(BIG).isinf().any().byte(), torch.zeros(1, device="cuda"), unknown(4).sum()):
        torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
        assert found.item() == (found.dtype is torch.float32 and found.dim() == 0)


@on_gpu()
def test_unknown_positions_are_valid_positions():
    x = unknown(32, 100)
    best = x.argmax(dim=-1)
    assert best.shape == (32,)
    assert 0 <= x.argmax().item() < x.numel()
    assert 0 <= best[0].item() < 100
    top = x.topk(5).indices
    assert 0 <= int(top[0, 0]) < 100
    assert x.sort(dim=-1).indices.max().item() < 100
    assert torch.multinomial(x, 1)[0].item() < 100


@on_gpu()
def test_a_whole_unknown_tensor_reads_as_finite_numbers():
    assert torch.isfinite(unknown(BIG).cpu()).all()
    assert torch.isfinite(torch.tensor(unknown(300).tolist())).all()
    assert unknown(300).cpu().numpy().shape == (300,)
    assert len(unknown(10).tolist()) == 10
    assert str(unknown(10))


@on_gpu()
def test_an_accuracy_can_be_computed_from_unknown_predictions():
    logits, labels = unknown(256, 10), torch.randint(0, 10, (256,), device=CARD)
    correct = (logits.argmax(1) == labels).sum().item()
    assert isinstance(correct, int)
    assert 0 <= correct <= 256
    assert math.isfinite((logits.argmax(1) == labels).float().mean().item())


@on_gpu()
def test_early_stopping_and_plateau_schedules_run_on_stand_ins():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(4, device=CARD))], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    best = float("inf")
    for _ in range(3):
        loss = unknown(64, 64).mean()
        schedule.step(loss)
        if loss < best:
            best = loss.item()
    assert math.isfinite(best)


# ---- shapes that values decide ----


@on_gpu()
def test_known_values_decide_shapes_exactly():
    x = torch.tensor([1.0, 0.0, 3.0, 0.0], device=CARD)
    assert x.nonzero().tolist() == [[0], [2]]
    assert x.nonzero(as_tuple=True)[0].tolist() == [0, 2]
    assert torch.where(x > 0)[0].tolist() == [0, 2]
    assert x[x > 0].tolist() == [1, 3]
    assert x[torch.tensor([True, False, True, True])].tolist() == [1, 3, 0]
    assert x.masked_select(x > 2).tolist() == [3]
    assert torch.count_nonzero(x).item() == 2
    assert torch.unique(torch.tensor([3, 1, 3], device=CARD)).tolist() == [1, 3]
    values, inverse, counts = torch.unique(
        torch.tensor([3, 1, 3], device=CARD), return_inverse=True, return_counts=True
    )
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([1, 3], [1, 0, 1], [1, 2])
    assert torch.unique_consecutive(torch.tensor([1, 1, 2, 1], device=CARD)).tolist() == [1, 2, 1]
    assert torch.bincount(torch.tensor([0, 2, 2], device=CARD)).tolist() == [1, 0, 2]
    assert torch.repeat_interleave(x, torch.tensor([1, 0, 2, 0], device=CARD)).tolist() == [1, 3, 3]
    assert torch.argwhere(x).tolist() == [[0], [2]]
    y = x.clone()
    y[y > 0] += 1
    assert y.tolist() == [2, 0, 4, 0]


@on_gpu()
def test_unknown_values_are_taken_as_if_every_element_counted():
    x = unknown(BIG)
    assert (x > 0.5).nonzero().shape == (BIG, 1)
    assert x[x > 0.5].shape == (BIG,)
    assert x.masked_select(x > 0.5).shape == (BIG,)
    assert torch.where(x > 0.5)[0].shape == (BIG,)
    rows = unknown(256, 64)
    assert rows[rows[:, 0] > 0.5].shape == (256, 64)
    assert torch.unique(x).shape == (BIG,)


@on_gpu()
def test_a_mask_can_be_used_in_training():
    x = torch.rand(256, 64, device=CARD, requires_grad=True)
    kept = x[x.detach() > 0.5]
    kept.square().sum().backward()
    assert x.grad.shape == x.shape
    target = torch.zeros(256, 64, device=CARD)
    target[x.detach() > 0.5] = 1.0
    target[x.detach() > 0.5] *= 2


def read_every_way() -> None:
    x = torch.ones(4, device=CARD)
    x.sum().item()
    x.cpu()
    x.nonzero()
    x[x > 0]
    torch.zeros(4).cuda()
    bool(x.all())
    x.tolist()
    x.to("cpu", non_blocking=True)  # into pinned memory: nobody waits


def test_every_read_is_recorded_as_a_synchronisation():
    assert syncs(rehearse(read_every_way)) == [
        SyncKind.ITEM,
        SyncKind.COPY,
        SyncKind.SHAPE,
        SyncKind.SHAPE,
        SyncKind.COPY,
        SyncKind.ITEM,
        SyncKind.COPY,
    ]


def test_a_read_is_recorded_with_the_line_that_reads():
    view = rehearse(read_every_way).trace.rank(0)
    first = int((view.records.kind == Kind.HOST_SYNC).nonzero()[0][0])
    line = view.line(int(view.records.line[first]))
    assert (line.file, line.function) == (__file__, "read_every_way")
    assert line.line == read_every_way.__code__.co_firstlineno + 2


def read_unknown() -> None:
    loss = unknown(64).mean()
    loss.item()
    unknown(BIG).cpu()
    unknown(BIG).nonzero()


def test_reading_what_only_the_card_would_know_leaves_a_note():
    done = rehearse(read_unknown)
    assert len(done.notes("unknown value")) == 2
    (shape,) = done.notes("unknown shape")
    assert "nonzero" in shape.text
    assert "every element was taken to count" in shape.text
    lines = [done.trace.lines[note.line] for note in done.trace.notes if note.kind.startswith("unknown")]
    assert {line.function for line in lines} == {"read_unknown"}


def read_known() -> None:
    assert torch.ones(3, device=CARD).sum().item() == 3


def test_reading_a_known_value_leaves_no_note():
    assert not [note for note in rehearse(read_known).trace.notes if note.kind.startswith("unknown")]


# ---- mixed precision ----


@on_gpu()
def test_autocast_chooses_formats_as_on_a_card():
    layer, x = nn.Linear(64, 64).cuda(), torch.rand(8, 64, device=CARD)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = layer(x)
        assert out.dtype == torch.bfloat16
        assert (x @ x.t()).dtype == torch.bfloat16
        assert (
            nn.functional.conv1d(torch.rand(1, 2, 8, device=CARD), torch.rand(2, 2, 3, device=CARD)).dtype
            == torch.bfloat16
        )
        assert nn.functional.layer_norm(out, (64,)).dtype == torch.float32
        assert out.softmax(-1).dtype == torch.float32
        assert nn.functional.cross_entropy(out, torch.zeros(8, dtype=torch.long, device=CARD)).dtype == torch.float32
        assert (out + x).dtype == torch.float32
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert layer(x).dtype == torch.float32
    with torch.autocast("cuda"):
        assert layer(x).dtype == torch.float16
    with contextlib.redirect_stderr(io.StringIO()), torch.amp.autocast("cuda", torch.float16):
        assert layer(x).dtype == torch.float16
    assert layer(x).dtype == torch.float32
    with torch.autocast("cuda", dtype=torch.bfloat16):
        layer(x).float().mean().backward()
    assert layer.weight.grad.dtype == torch.float32


def cast_twice() -> None:
    layer, x = nn.Linear(256, 256, bias=False).cuda(), torch.rand(8, 256, device=CARD)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        layer(layer(x))


def test_autocast_casts_a_weight_once_a_region():
    casts = [
        operator
        for operator in rehearse(cast_twice).trace.rank(0).operators()
        if operator.signature.op in ("aten::copy_", "aten::_to_copy")
        and operator.signature.outputs[0].shape == (256, 256)
    ]
    assert len(casts) == 1


@on_gpu()
def test_the_gradient_scaler_grows_on_its_schedule():
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    assert scaler.is_enabled()
    scales = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.rand(8, 64, device=CARD)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [1024, 2048, 2048, 4096]
    state = scaler.state_dict()
    fresh = torch.amp.GradScaler("cuda")
    fresh.load_state_dict(state)
    assert fresh.get_scale() == 4096


@on_gpu()
def test_the_gradient_scaler_skips_a_step_whose_known_gradients_overflow():
    parameter = nn.Parameter(torch.ones(2, device=CARD))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale(parameter.sum()).backward()
    parameter.grad[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [1, 1]
    assert scaler.get_scale() == 2


@on_gpu()
def test_the_gradient_scaler_unscales_known_gradients():
    parameter = nn.Parameter(torch.ones(2, device=CARD))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale((parameter * 3).sum()).backward()
    assert parameter.grad.tolist() == [12, 12]
    scaler.unscale_(optimizer)
    assert parameter.grad.tolist() == [3, 3]
    scaler.step(optimizer)
    assert parameter.tolist() == [-2, -2]


@on_gpu()
def test_a_fused_optimizer_takes_the_scalers_scale():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.rand(2, 8, device=CARD)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.state[model.weight]["step"].item() == 2


# ---- phases ----


def two_steps() -> None:
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.rand(8, 64, device=CARD)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_forward_backward_and_optimizer_are_told_apart():
    done = rehearse(two_steps)
    view = done.trace.rank(0)
    phases: dict[str, set[str]] = {}
    for operator in view.operators():
        phases.setdefault(operator.signature.op, set()).add(operator.phase.name)
    assert phases["aten::addmm"] == {"FORWARD"}
    assert "BACKWARD" in phases["aten::mm"]
    assert phases["aten::_foreach_add_"] == {"OPTIMIZER"}
    assert done.trace.num_steps == 2
    assert len(view.step_slices()) == 2


def test_a_backward_operator_has_the_line_of_its_forward_operator():
    view = rehearse(two_steps).trace.rank(0)
    lines = {operator.signature.op: operator.line for operator in view.operators() if operator.phase.name == "BACKWARD"}
    assert lines["aten::mm"].function == "two_steps"
    assert lines["aten::mm"].line == two_steps.__code__.co_firstlineno + 4


def steps_for_ever() -> None:
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.rand(8, 64, device=CARD)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("steps", [1, 4])
def test_a_capture_stops_after_the_steps_asked_for(steps):
    trace = rehearse(steps_for_ever, steps=steps).trace
    assert trace.num_steps == steps
    assert len(trace.rank(0).step_slices()) == steps


def test_a_script_that_never_steps_stops_at_the_operator_limit():
    done = rehearse(computes_for_ever, max_operators=500)
    assert 490 <= sum(1 for _ in done.trace.rank(0).operators()) <= 510
    (note,) = done.notes("fewer steps")
    assert "max-operators" in note.text


def computes_for_ever() -> None:
    x = torch.rand(64, device=CARD)
    while True:
        x = x + 1
