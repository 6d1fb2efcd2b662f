"""torch.compile in a rehearsal: Dynamo and Inductor run, and the fused kernels are recorded as single launches.

What Inductor fuses is its own decision. The numbers of kernels here are those of its code for a card, and do not change
with what is installed: Triton is not needed.
"""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="attr-defined"

import secrets
from typing import Any

import torch
from tests.vgpu.virtual import Rehearsal, on_gpu, rehearse
from torch import nn
from torch.nn import functional as F

from sandtable.trace import Phase
from sandtable.trace.kinds import Kind, LaunchKind
from sandtable.trace.movement import bytes_moved
from sandtable.trace.signature import Signature
from sandtable.vgpu.compile.shared_cache import rewrite_cards

ROWS, WIDTH = 1024, 2048
HALF_BYTES = 2


def kernels(done: Rehearsal, *, phase: Phase | None = None) -> list[Signature]:
    """Return the fused kernels that were launched, in order."""
    operators = [operator for operator in done.trace.rank(0).operators() if phase in (None, operator.phase)]
    return [operator.signature for operator in operators if operator.signature.op.startswith("inductor::")]


def launches(done: Rehearsal) -> list[LaunchKind]:
    records = done.trace.rank(0).records
    return [LaunchKind(value) for kind, value in zip(records.kind, records.value, strict=True) if kind == Kind.OPERATOR]


# ---- what a compiled function is ----


@on_gpu()
def test_a_compiled_model_computes_what_the_model_does():
    model = nn.Linear(4, 2).cuda()
    compiled = torch.compile(model)
    x = torch.rand(3, 4, device="cuda")
    assert torch.allclose(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.weight.grad is not None
    assert [name for name, _ in compiled.named_parameters()] == ["_orig_mod.weight", "_orig_mod.bias"]


@on_gpu()
def test_sizes_of_kernels_are_not_measured():
    from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner

    def measure(size):
        raise AssertionError(f"a kernel of size {size} would run")

    assert CoordescTuner.autotune_single_field(measure, 64, 8) == 64


@on_gpu()
def test_modes_and_options_are_taken():
    x = torch.ones(8, device="cuda")
    for options in (
        {"mode": "max-autotune", "fullgraph": True},
        {"mode": "max-autotune-no-cudagraphs"},
        {"dynamic": True},
        {"backend": "inductor", "options": {"triton.cudagraphs": True}},
        {"backend": "eager"},
        {"backend": "aot_eager"},
        {"disable": True},
    ):
        torch.compiler.reset()
        assert torch.compile(lambda x: x * 2 + 1, **options)(x).tolist() == [3] * 8


@on_gpu()
def test_compile_decorates_functions_with_and_without_options():
    @torch.compile
    def plain(x):
        return x * 2

    @torch.compile(mode="reduce-overhead", fullgraph=True)
    def chosen(x):
        return x * 3

    x = torch.ones(2, device="cuda")
    assert plain(x).tolist() == [2, 2]
    assert chosen(x).tolist() == [3, 3]


@on_gpu()
def test_a_module_compiles_itself_in_place():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
    model.compile(mode="default")
    assert model(torch.rand(2, 4, device="cuda")).shape == (2, 4)
    for layer in model:
        layer.compile()
    assert model(torch.rand(2, 4, device="cuda")).shape == (2, 4)


@on_gpu()
def test_helpers_of_the_compiler_are_harmless():
    assert torch.compiler.is_compiling() is False
    torch._dynamo.config.cache_size_limit = 64
    torch._dynamo.reset()
    torch.compiler.reset()
    torch.compiler.cudagraph_mark_step_begin()

    @torch.compiler.disable
    def plain(x):
        return x + 1

    @torch._dynamo.disable
    def other(x):
        return x + 1

    assert plain(torch.ones(1, device="cuda")).item() == other(torch.ones(1, device="cuda")).item() == 2


@on_gpu()
def test_compiled_convolutions_have_the_memory_format_of_cudnn():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).cuda()
    plain = torch.rand(2, 4, 16, 16, device="cuda", requires_grad=True)
    for x, weights in ((plain, "channels_last"), (plain.to(memory_format=torch.channels_last), "contiguous_format")):
        model = model.to(memory_format=getattr(torch, weights))  # type: ignore[call-overload]
        eager = model(x)
        compiled = torch.compile(model, fullgraph=True)(x)
        assert compiled.stride() == eager.stride()
        assert compiled.is_contiguous(memory_format=torch.channels_last)
        compiled.sum().backward()


@on_gpu()
def test_a_compiled_optimizer_step_runs():
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(2, 4, device="cuda")).sum().backward()
    step = torch.compile(lambda: optimizer.step())
    step()
    assert optimizer.state[model.weight]["step"].item() == 1


# ---- values ----


@on_gpu()
def test_small_known_values_stay_known_and_mutations_reach_the_input():
    @torch.compile
    def count(counter, flags):
        counter += flags.sum()
        return torch.where(flags, counter, -counter)

    counter = torch.tensor(5, device="cuda")
    assert count(counter, torch.tensor([True, False], device="cuda")).tolist() == [6, -6]
    assert counter.item() == 6


@on_gpu()
def test_values_of_large_tensors_stay_unknown():
    x = torch.rand(1024, 1024, device="cuda")
    assert torch.compile(lambda x: (x * 2).sum())(x).item() == 1.0  # the stand-in


# ---- kernels ----


def run_pointwise_chain() -> None:
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    torch.compile(lambda x: (F.gelu(x * 2) + 1).float().tanh().to(x.dtype))(x)


def test_a_chain_of_pointwise_operators_is_one_kernel_that_reads_and_writes_once():
    (kernel,) = kernels(rehearse(run_pointwise_chain))
    assert bytes_moved(kernel) == (ROWS * WIDTH * HALF_BYTES, ROWS * WIDTH * HALF_BYTES)
    assert kernel.work is not None
    assert kernel.work.family == "elementwise"


def run_norm() -> None:
    norm = nn.RMSNorm(WIDTH, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        torch.compile(lambda x: norm(x + 1))(x)


def test_a_norm_with_what_is_before_it_is_one_reduction():
    (kernel,) = kernels(rehearse(run_norm))
    read, written = bytes_moved(kernel)
    assert read == (ROWS * WIDTH + WIDTH) * HALF_BYTES
    assert written == ROWS * WIDTH * HALF_BYTES
    assert kernel.work is not None
    assert kernel.work.family == "normalisation"


def run_slice() -> None:
    x = torch.randn(ROWS, WIDTH, device="cuda")
    torch.compile(lambda x: x[:, : WIDTH // 4] * 2)(x)


def test_of_a_slice_only_its_elements_are_read():
    (kernel,) = kernels(rehearse(run_slice))
    assert bytes_moved(kernel) == (ROWS * WIDTH, ROWS * WIDTH)


def run_dropout() -> None:
    x = torch.randn(ROWS, WIDTH, device="cuda")
    torch.compile(lambda x: F.dropout(x * 2, 0.5))(x)


def test_numbers_that_are_no_sizes_do_not_scale_a_kernel():
    (kernel,) = kernels(rehearse(run_dropout))
    read, written = bytes_moved(kernel)
    assert ROWS * WIDTH * 4 <= read <= ROWS * WIDTH * 4 + 64
    assert written == ROWS * WIDTH * 4


def run_dynamic() -> None:
    double = torch.compile(lambda x: x * 2, dynamic=True)
    for rows in (ROWS, 2 * ROWS):
        double(torch.randn(rows, WIDTH, device="cuda"))


def test_a_kernel_for_any_size_moves_the_bytes_of_each():
    first, second = kernels(rehearse(run_dynamic))
    assert bytes_moved(first) == (ROWS * WIDTH * 4, ROWS * WIDTH * 4)
    assert bytes_moved(second) == (2 * ROWS * WIDTH * 4, 2 * ROWS * WIDTH * 4)


def run_long_rows() -> None:
    logits = torch.randn(64, 128 * 1024, device="cuda")
    torch.compile(lambda x: torch.softmax(x, -1))(logits)
    torch.compile(lambda x: torch.softmax(x, -1))(torch.randn(64, 8 * 1024, device="cuda"))


def test_rows_longer_than_the_cache_are_read_again():
    by_rows = {kernel.inputs[0].shape[-1]: bytes_moved(kernel) for kernel in kernels(rehearse(run_long_rows))}
    assert by_rows[8 * 1024] == (64 * 8 * 1024 * 4, 64 * 8 * 1024 * 4)
    read, written = by_rows[128 * 1024]
    assert read > written


class Block(nn.Module):
    """A gated MLP after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        result: torch.Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result


def train_block(*, compiled: bool) -> None:
    block = Block().cuda().bfloat16()
    run = torch.compile(block) if compiled else block
    optimizer = torch.optim.SGD(block.parameters())
    for _ in range(3):
        run(torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_products_are_launched_as_themselves_and_phases_are_kept():
    done = rehearse(train_block, arguments={"compiled": True})
    eager = rehearse(train_block, arguments={"compiled": False})

    def products(rehearsal: Rehearsal, phase: Phase) -> int:
        operators = rehearsal.trace.rank(0).operators()
        names = [operator.signature.name for operator in operators if operator.phase is phase]
        return names.count("aten::mm") + names.count("aten::addmm")

    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert products(done, phase) == products(eager, phase) > 0
    assert done.trace.num_steps == 3
    assert len(kernels(done, phase=Phase.FORWARD)) == 2 * 3  # norm and gate; the residual is added by the product


def test_a_compiled_model_keeps_less_memory():
    compiled, eager = (
        rehearse(train_block, arguments={"compiled": compiled}).trace.rank(0).memory.allocated_bytes
        for compiled in (True, False)
    )
    assert compiled < eager


def merge_in_place(*, width: int) -> None:
    @torch.compile
    def merge(sums, step):
        rows = sums[:, 1]
        rows.copy_(torch.max(rows, step) + torch.log1p(torch.exp(rows - step)))

    merge(torch.empty(8, 2, width, device="cuda"), torch.empty(8, width, device="cuda"))


def test_a_graph_that_is_compiled_and_one_from_the_cache_leave_the_same_records():
    width = 8192 + 8 * secrets.randbelow(8192)  # one that no cache has
    compiled, loaded = (rehearse(merge_in_place, arguments={"width": width}).trace for _ in range(2))
    assert compiled.rank(0).records.kind.tolist() == loaded.rank(0).records.kind.tolist()
    assert compiled.rank(0).records.value.tolist() == loaded.rank(0).records.value.tolist()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


doubled = Doubled.apply  # scripts give it a name of its own


def compile_autograd_function(width: int) -> None:
    from torch._dynamo.utils import counters

    x = torch.zeros(width, device="cuda", requires_grad=True)
    for _ in range(2):
        torch.compiler.reset()
        torch.compile(lambda x: doubled(x.cos()) + 1, fullgraph=True)(x).sum().backward()
    seen = counters["aot_autograd"]
    assert (seen["autograd_cache_bypass"], seen["autograd_cache_hit"]) == (0, 1), dict(seen)


def test_a_graph_with_a_function_of_the_script_is_traced_and_taken_from_the_cache():
    width = 8192 + 8 * secrets.randbelow(8192)
    rehearse(compile_autograd_function, arguments={"width": width})


def compile_in_turn(width: int) -> None:
    from torch import distributed as dist
    from torch._dynamo.utils import counters

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    for turn in range(2):
        if turn == rank:
            x = torch.zeros(width, device=f"cuda:{rank}", requires_grad=True)
            y = torch.compile(lambda x: torch.cat([x.sin(), torch.rand(8, device=x.device)]) * 2)(x)
            y.sum().backward()
            assert x.grad is not None
            assert [tensor.device.index for tensor in (y, x.grad)] == [rank, rank]
        done = torch.ones(1, device="cuda")
        dist.all_reduce(done)
        assert done.item() == 2
    assert counters["inductor"]["fxgraph_cache_hit"] == 2 * rank, dict(counters["inductor"])
    dist.destroy_process_group()


def test_what_one_rank_compiled_serves_the_ranks_of_other_cards():
    width = 8192 + 8 * secrets.randbelow(8192)
    trace = rehearse(compile_in_turn, ranks=2, arguments={"width": width}).trace
    first, second = (
        [operator.signature.op for operator in trace.rank(rank).operators() if "inductor" in operator.signature.op]
        for rank in range(2)
    )
    assert first == second
    assert first


def gather_in_turn(width: int) -> None:
    """On each rank after the other, gather a distributed tensor over groups of two in a compiled function."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    torch.cuda.set_device(dist.get_rank())

    def gather(x: DTensor) -> Any:
        return x.sin().redistribute(placements=[Replicate()]).to_local() * 2

    for turn in range(4):
        if turn == dist.get_rank():
            local = torch.zeros(width, device="cuda", requires_grad=True)
            y = torch.compile(gather, fullgraph=True)(DTensor.from_local(local, mesh, [Shard(0)]))
            assert y.shape == (2 * width,)
        done = torch.ones(1, device="cuda")
        dist.all_reduce(done)
        assert done.item() == 4
    dist.destroy_process_group()


def test_ranks_of_other_groups_do_not_take_compiled_code_that_names_a_group():
    width = 8192 + 8 * secrets.randbelow(8192)
    trace = rehearse(gather_in_turn, ranks=4, arguments={"width": width}).trace
    calls = [call for rank in (0, 3) for call in trace.rank(rank).collectives()]
    assert [call.group.ranks for call in calls if call.op == "all_gather"] == [(0, 1), (2, 3)]


def test_only_the_own_card_is_rewritten():
    code = "_DeviceGuard(1): get_raw_stream(1); device(type='cuda', index=12); 'cuda:1'; 'cuda:3'; f(1)"
    expected = "_DeviceGuard(5): get_raw_stream(5); device(type='cuda', index=12); 'cuda:5'; 'cuda:3'; f(1)"
    assert rewrite_cards(code, 1, 5) == expected


# ---- buffers that are written in place ----


@torch.library.custom_op("sandtable_tests::fill", mutates_args=("x",))
def fill(x: torch.Tensor) -> None:
    x.fill_(1)


def read_what_was_written() -> None:
    def layer(x):
        out = torch.empty_like(x)
        fill(out)
        return out + 1

    torch.compile(layer, fullgraph=True)(torch.zeros(WIDTH, WIDTH, device="cuda"))


def test_a_buffer_that_another_kernel_wrote_in_place_is_read():
    (kernel,) = kernels(rehearse(read_what_was_written))
    assert kernel.work is not None
    assert (kernel.work.bytes_read, kernel.work.bytes_written) == (4 * WIDTH * WIDTH, 4 * WIDTH * WIDTH)


# ---- launches ----


def run_graphs() -> None:
    chain = torch.compile(lambda x: F.softmax((x @ x).relu(), -1) @ x, mode="reduce-overhead")
    for _ in range(3):
        chain(torch.randn(WIDTH, WIDTH, device="cuda"))


def test_a_compiled_graph_is_a_call_and_launches_and_with_cuda_graphs_one_launch():
    seen = [kind for kind in launches(rehearse(run_graphs)) if kind is not LaunchKind.EAGER]
    calls = [index for index, kind in enumerate(seen) if kind is LaunchKind.CALL]
    assert len(calls) == 3
    first, second = seen[calls[0] + 1 : calls[1]], seen[calls[1] + 1 : calls[2]]
    assert set(first) == {LaunchKind.COMPILED}
    assert set(second) == {LaunchKind.GRAPH}


# ---- notes ----


def break_the_graph() -> None:
    @torch.compile
    def broken(x):
        y = x * 2
        print("in between")
        return y + 1

    broken(torch.randn(64, 64, device="cuda"))


def test_graph_breaks_are_noted_with_their_line():
    (note,) = rehearse(break_the_graph).notes("graph break")
    assert "test_compile.py:" in note.text
    assert "print" in note.text


def compile_what_fails() -> None:
    from torch._inductor import lowering

    def fail(*_: object) -> None:
        raise RuntimeError("no such lowering")

    lowering.lowerings[torch.ops.aten.tanh.default] = fail
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    torch.compile(lambda x: x.tanh() * 2)(x).sum().backward()
    assert x.grad is not None


def test_a_graph_that_cannot_be_compiled_runs_eagerly_and_is_noted():
    notes = rehearse(compile_what_fails).notes("torch.compile")
    assert notes
    assert "no such lowering" in notes[0].text


def specialise_a_number() -> None:
    pad = torch.compile(lambda x, value: F.pad(x, (1, 1), value=value))
    for value in (0.5, 0.7, 0.9):  # from the second on, the number is an input of the graph, which padding cannot take
        assert pad(torch.ones(64, 64, device="cuda"), value).shape == (64, 66)


def test_dynamo_traces_again_where_a_number_has_to_be_a_constant():
    assert not rehearse(specialise_a_number).notes("torch.compile")
