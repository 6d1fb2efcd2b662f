"""What a pipeline records: passes, their picture, bytes."""

import time
from xml.etree import ElementTree

from tests.methods.pipeline.losing import run_and_lose
from tests.methods.pipeline.training import batches, make_stages, sgd, train
from tests.methods.processes import run
from torch import nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.pipeline import Flush, PipeDream, Pipeline

_SVG = "{http://www.w3.org/2000/svg}"


def drawn(path):
    pipeline = Pipeline(make_stages(3), sgd, loss=F.cross_entropy, schedule=PipeDream(), timeout_s=40)
    for inputs, targets in batches(6):
        pipeline.step(inputs, targets)
    pipeline.drain()
    pipeline.record.save_svg(path / "schedule.svg")
    pipeline.record.save_html(path / "schedule.html", minibatches=range(3))
    everything = pipeline.record.gather()
    pipeline.close()
    return [("F" if each.is_forward else "B") + str(each.minibatch) for each in pipeline.record.passes], everything


class Slow(nn.Module):
    def forward(self, values):
        time.sleep(0.05)
        return values


def waited():
    stages = make_stages(2)
    slow = [stages[0], nn.Sequential(Slow(), stages[1])]
    with Pipeline(slow, sgd, loss=F.cross_entropy, schedule=PipeDream(), timeout_s=40) as pipeline:
        before = pipeline.waited_s
        for inputs, targets in batches(8):
            pipeline.step(inputs, targets)
        pipeline.drain()
        return pipeline.waited_s - before


def test_who_stands_still_for_a_slow_stage_knows_how_long():
    first, _ = run(2, waited)
    assert first > 4 * 0.05


def test_the_picture_shows_every_pass_of_a_real_run_in_the_order_of_1f1b(tmp_path):
    ranks = run(3, drawn, tmp_path)
    orders = [" ".join(order) for order, _ in ranks]
    assert orders == [
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]
    passes = ranks[0][1]
    assert [len(everything) for _, everything in ranks] == [36, 0, 0]
    for each in passes:
        if each.is_forward and each.stage:
            before = next(
                p for p in passes if p.is_forward and (p.stage, p.minibatch) == (each.stage - 1, each.minibatch)
            )
            assert before.end_s < each.end_s
    root = ElementTree.parse(tmp_path / "schedule.svg").getroot()
    bars = [bar for bar in root.iter(f"{_SVG}rect") if bar.find(f"{_SVG}title") is not None]
    assert len(bars) == 36
    assert len({bar.get("y") for bar in bars}) == 3
    assert sum("forward" in str(bar.get("class")) for bar in bars) == 18
    page = (tmp_path / "schedule.html").read_text()
    assert page.count("<title>Forward pass of minibatch") == 9


def counted(schedule, replicas):
    found = train(batches(6), 2, sgd, schedule=schedule, replicas=replicas)
    return found["traffic"]


def test_bytes_are_those_that_cross_the_cut_and_those_among_replicas():
    # Four layers a stage; ten numbers cross for each of eight rows, as float32.
    crossing = 6 * 8 * 10 * 4
    first, last = run(2, counted, Flush(4), None)
    assert (first.activation_bytes, first.gradient_bytes, first.weight_bytes) == (crossing, 0, 0)
    assert (last.activation_bytes, last.gradient_bytes, last.weight_bytes) == (0, crossing, 0)
    one, other, last = run(3, counted, PipeDream(), (2, 1))
    weights = 4 * sum(each.numel() for each in make_stages(2)[0].parameters())
    flags = 4 * sum(1 for _ in make_stages(2)[0].parameters())
    assert one.activation_bytes == other.activation_bytes == crossing // 2
    assert last.gradient_bytes == crossing
    # Three rounds of two minibatches, each 2 (m - 1) / m of the vector from each of two ranks.
    assert one.weight_bytes == other.weight_bytes == 3 * (weights + flags)
    # A header a message, and shapes once.
    assert last.control_bytes < 6 * 32 + 2 * 100
    assert last.messages == 6 * 2 + 2


def ill_fitting(schedule):
    stages = [nn.Linear(6, 5), nn.Linear(4, 3)]
    pipeline = Pipeline(stages, sgd, loss=F.cross_entropy, schedule=schedule, timeout_s=40)
    try:
        for inputs, targets in batches(3):
            pipeline.step(inputs, targets)
        pipeline.drain()
    except MethodError as error:
        return str(error)
    return "no error"


def test_stages_that_do_not_fit_are_refused_with_the_shapes():
    for schedule, rows in ((PipeDream(), 8), (Flush(4), 2)):
        answers = run_and_lose(2, 0, ill_fitting, schedule)
        expected = f"what leaves stage 0 must fit what stage 1 takes, but stage 1 got [{rows}, 5] of float32"
        assert answers[1].startswith(expected), answers[1]


def without_targets():
    pipeline = Pipeline(make_stages(2), sgd, loss=F.cross_entropy, schedule=PipeDream(), timeout_s=40)
    try:
        pipeline.step(None, None)
    except MethodError as error:
        return str(error)
    return "no error"


def test_a_rank_without_what_it_needs_says_so():
    first, last = run(2, without_targets)
    assert "must be given inputs, but rank 0 (stage 0) got None" in first
    assert "must be given targets, but rank 1 (stage 1) got None" in last


def unequal():
    pipeline = Pipeline(make_stages(2), sgd, loss=F.cross_entropy, schedule=PipeDream(), timeout_s=40)
    try:
        for inputs, targets in batches(4 if pipeline.takes_inputs else 3):
            pipeline.step(inputs, targets)
        pipeline.drain()
    except MethodError as error:
        return str(error)
    return "no error"


def test_ranks_that_train_on_different_numbers_of_minibatches_are_told_so():
    answers = run_and_lose(2, 0, unequal)
    assert "rank 1 (stage 1) and rank 0 (stage 0) differ after 3 minibatches" in answers[1]
