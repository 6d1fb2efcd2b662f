"""Device management as a script sees it: current card, its properties, streams, events, random numbers, flags."""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="call-arg,misc,unreachable"

import os
import warnings

import pytest
import torch
from tests.vgpu.virtual import Rehearsal, on_gpu, rehearse

from sandtable.cluster import load
from sandtable.trace import Kind, SyncKind


def host_syncs(done: Rehearsal) -> list[SyncKind]:
    records = done.trace.rank(0).records
    return [SyncKind(int(value)) for value in records.value[records.kind == Kind.HOST_SYNC]]


# ---- cards ----


@on_gpu()
def test_cuda_is_available_with_a_nodes_worth_of_cards():
    assert torch.cuda.is_available()
    assert torch.backends.cuda.is_built()
    assert torch.cuda.device_count() == 8
    assert torch.version.cuda is not None
    assert not torch.cuda.is_initialized()
    torch.cuda.init()
    assert torch.cuda.is_initialized()


@on_gpu()
def test_set_device_and_the_device_context_change_the_current_card():
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(3)
    assert torch.cuda.current_device() == 3
    assert torch.ones(2, device="cuda").device == torch.device("cuda:3")
    with torch.cuda.device(5):
        assert torch.empty(1).cuda().get_device() == 5
    assert torch.cuda.current_device() == 3
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device(torch.device("cuda", 2))
    assert torch.cuda.current_device() == 2
    with torch.cuda.device_of(torch.ones(1, device="cuda:4")):
        assert torch.cuda.current_device() == 4
    with torch.device("cuda:6"):
        assert torch.zeros(1).device.index == 6


@on_gpu()
def test_a_card_out_of_range_is_refused_as_cuda_does():
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(8)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:9")
    with pytest.raises((AssertionError, RuntimeError), match=r"[Ii]nvalid device"):
        torch.cuda.get_device_properties(8)
    assert torch.ones(1, device="cuda").item() == 1


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100", "dgx1-v100"])
def test_a_card_says_what_the_catalogue_says(cluster):
    rehearse(check_properties, cluster=cluster, arguments={"cluster": cluster})


def check_properties(cluster: str) -> None:
    device = load(cluster).device
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == torch.cuda.get_device_name() == torch.cuda.get_device_name("cuda:1") == device.name
    assert torch.cuda.get_device_capability() == (device.major, device.minor)
    assert (properties.major, properties.minor) == (device.major, device.minor)
    assert properties.total_memory == device.memory_bytes
    assert properties.multi_processor_count == device.num_sms
    assert properties.L2_cache_size == device.l2_bytes
    assert properties.warp_size == 32
    assert f"sm_{device.major}{device.minor}" in torch.cuda.get_arch_list()
    assert torch.cuda.get_device_properties("cuda").name == device.name
    assert device.name in repr(properties)


@on_gpu()
def test_bfloat16_and_tf32_support_follow_the_card():
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.is_tf32_supported()
    assert torch.cuda.can_device_access_peer(0, 1)


@on_gpu(cluster="dgx1-v100")
def test_an_older_card_has_no_native_bfloat16():
    assert not torch.cuda.is_bf16_supported(including_emulation=False)
    assert not torch.cuda.is_tf32_supported()


@on_gpu()
def test_the_accelerator_api_answers_for_cuda():
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    assert accelerator.type == "cuda"
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 8
    torch.accelerator.set_device_index(2)
    assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 2
    torch.accelerator.synchronize()
    stream = torch.accelerator.current_stream()
    assert stream.device == torch.device("cuda:2")
    held = torch.empty(1 << 20, device="cuda:2")
    assert torch.accelerator.memory_allocated(2) == held.nbytes
    assert torch.accelerator.max_memory_allocated(2) >= held.nbytes
    with torch.accelerator.device_index(5):
        assert torch.cuda.current_device() == 5
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()


# ---- a process forked after CUDA was used ----


@on_gpu()
def test_cuda_in_a_forked_process_is_refused_as_cuda_does():
    torch.ones(1, device="cuda")
    torch.cuda.init()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.cuda.set_device(1)
            torch.ones(1, device="cuda").item()
            said = b"nothing"
        except RuntimeError as error:
            said = str(error).encode()
        os.write(writing, said)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"Cannot re-initialize CUDA in forked subprocess" in os.read(reading, 4096)


# ---- streams and events ----


@on_gpu()
def test_a_stream_context_makes_a_stream_current():
    default = torch.cuda.default_stream()
    assert torch.cuda.current_stream() == default
    side = torch.cuda.Stream()
    assert side != default
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == default
    torch.cuda.set_stream(side)
    assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream("cuda:1") == torch.cuda.default_stream("cuda:1")


@on_gpu()
def test_a_stream_belongs_to_the_card_it_was_made_for():
    stream = torch.cuda.Stream(device="cuda:3")
    assert stream.device == torch.device("cuda:3")
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 3
        assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_device() == 0
    assert torch.cuda.Stream(device=0).device.index == 0
    high = torch.cuda.Stream(priority=-1)
    assert high.priority == -1
    least, greatest = torch.cuda.Stream.priority_range()
    assert least == 0
    assert greatest < 0
    assert high.query()
    assert isinstance(high.cuda_stream, int)
    assert {high, high} == {high}
    assert "cuda" in repr(high)


@on_gpu()
def test_events_order_streams_and_measure_time():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert start.query()
    start.record()
    torch.ones(1 << 20, device="cuda").mul_(2)
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    side = torch.cuda.Stream()
    side.wait_event(start)
    side.wait_stream(torch.cuda.current_stream())
    event = side.record_event()
    torch.cuda.current_stream().wait_event(event)
    event.wait()
    with torch.cuda.stream(side):
        made = torch.cuda.current_stream().record_event(torch.cuda.Event())
    assert made is not None
    assert isinstance(repr(event), str)


@on_gpu()
def test_time_cannot_be_measured_between_events_without_timing():
    first, second = torch.cuda.Event(), torch.cuda.Event()
    first.record()
    second.record()
    with pytest.raises((RuntimeError, ValueError)):
        first.elapsed_time(second)


def side_stream_work() -> None:
    x = torch.ones(1 << 12, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    y.add_(1)


def test_operators_are_recorded_on_the_stream_they_ran_on():
    view = rehearse(side_stream_work).trace.rank(0)
    streams = {operator.signature.op: operator.stream for operator in view.operators()}
    assert streams["aten::add_"] == 0
    assert streams["aten::mul"] > 0
    kinds = view.records.kind.tolist()
    assert kinds.count(Kind.EVENT_RECORD) == kinds.count(Kind.EVENT_WAIT) == 2
    waits = view.records.kind == Kind.EVENT_WAIT
    assert view.records.stream[waits].tolist() == [streams["aten::mul"], 0]
    records = view.records.kind == Kind.EVENT_RECORD
    assert view.records.ref[waits].tolist() == view.records.ref[records].tolist()


def synchronise_every_way() -> None:
    torch.cuda.synchronize()
    torch.cuda.synchronize("cuda:1")
    torch.cuda.current_stream().synchronize()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def test_each_way_to_synchronise_is_recorded_as_what_it_is():
    assert host_syncs(rehearse(synchronise_every_way)) == [
        SyncKind.DEVICE,
        SyncKind.DEVICE,
        SyncKind.STREAM,
        SyncKind.EVENT,
    ]


@on_gpu()
def test_an_external_stream_can_be_wrapped():
    stream = torch.cuda.Stream()
    external = torch.cuda.ExternalStream(stream.cuda_stream)
    assert external.cuda_stream == stream.cuda_stream
    with torch.cuda.stream(external):
        torch.ones(4, device="cuda")


# ---- random numbers ----


@on_gpu()
def test_the_same_seed_gives_the_same_numbers():
    torch.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    first = torch.rand(8, device="cuda").tolist()
    second = torch.rand(8, device="cuda").tolist()
    torch.manual_seed(7)
    assert torch.rand(8, device="cuda").tolist() == first
    assert second != first
    torch.cuda.manual_seed(7)
    assert torch.rand(8, device="cuda").tolist() == first
    torch.cuda.manual_seed_all(8)
    assert torch.rand(8, device="cuda").tolist() != first
    torch.cuda.seed()
    torch.cuda.seed_all()


@on_gpu()
def test_a_seed_set_before_cuda_starts_counts():
    torch.cuda.manual_seed_all(11)
    assert torch.cuda.initial_seed() == 11


@on_gpu()
def test_random_state_is_saved_and_restored():
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    assert state.numel() == 16
    first = torch.randn(4, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.randn(4, device="cuda").tolist() == first
    states = torch.cuda.get_rng_state_all()
    assert len(states) == 8
    more = torch.randn(4, device="cuda").tolist()
    torch.cuda.set_rng_state_all(states)
    assert torch.randn(4, device="cuda").tolist() == more
    with torch.random.fork_rng(devices=[0]):
        torch.randn(4, device="cuda")
    follow = torch.randn(4, device="cuda").tolist()
    torch.cuda.set_rng_state_all(states)
    torch.randn(4, device="cuda")
    assert torch.randn(4, device="cuda").tolist() == follow


@on_gpu()
def test_drawing_large_tensors_advances_the_random_state():
    before = torch.cuda.get_rng_state()
    torch.randn(1 << 20, device="cuda")
    assert not torch.equal(before, torch.cuda.get_rng_state())
    before = torch.cuda.get_rng_state()
    torch.nn.functional.dropout(torch.ones(1 << 20, device="cuda"))
    assert not torch.equal(before, torch.cuda.get_rng_state())


@on_gpu()
def test_a_generator_of_its_own_is_independent_of_the_default_one():
    generator = torch.Generator(device="cuda").manual_seed(5)
    assert generator.device.type == "cuda"
    assert generator.initial_seed() == 5
    first = torch.rand(4, device="cuda", generator=generator).tolist()
    torch.rand(4, device="cuda")
    generator.manual_seed(5)
    assert torch.rand(4, device="cuda", generator=generator).tolist() == first
    state = generator.get_state()
    drawn = torch.randint(0, 1000, (8,), device="cuda", generator=generator).tolist()
    generator.set_state(state)
    assert torch.randint(0, 1000, (8,), device="cuda", generator=generator).tolist() == drawn
    clone = generator.clone_state()
    assert clone.initial_seed() == 5
    with pytest.raises(RuntimeError, match=r"'?cuda'? generator|device type for generator|Expected a"):
        torch.rand(4, device="cuda", generator=torch.Generator())
    permuted = torch.randperm(16, device="cuda", generator=generator)
    assert sorted(permuted.tolist()) == list(range(16))
    assert torch.cuda.default_generators[3].device.index == 3


# ---- flags and libraries ----


@on_gpu()
def test_precision_and_library_flags_can_be_set():
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.backends.cuda.matmul.allow_tf32
    torch.set_float32_matmul_precision("high")
    assert torch.get_float32_matmul_precision() == "high"
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark_limit = 5
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.deterministic
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() >= 90000
    assert torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda"))
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        assert not torch.backends.cudnn.benchmark
    torch.backends.cuda.preferred_linalg_library("cusolver")
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.enable_flash_sdp(False)
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.cufft_plan_cache.size >= 0
    torch.use_deterministic_algorithms(True, warn_only=True)


@on_gpu()
def test_libraries_say_they_are_there():
    import torch.distributed as dist

    assert dist.is_available()
    assert dist.is_nccl_available()
    assert dist.is_gloo_available()
    assert torch.cuda.nccl.version() >= (2, 0)
    assert torch.cuda.cudart() is not None
    assert torch.backends.cuda.is_flash_attention_available()
    assert "cuda" in torch.__config__.show().lower() or torch.version.cuda


@on_gpu()
def test_nvtx_and_profiler_marks_are_accepted():
    torch.cuda.nvtx.range_push("step")
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_pop()
    handle = torch.cuda.nvtx.range_start("epoch")
    torch.cuda.nvtx.range_end(handle)
    with torch.cuda.nvtx.range("forward {}", 1):
        pass
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    with torch.cuda.profiler.profile():
        pass
    with torch.autograd.profiler.emit_nvtx():
        torch.ones(2, device="cuda", requires_grad=True).sum().backward()
    with torch.profiler.record_function("forward"):
        torch.ones(2, device="cuda")


def profiled_work() -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    tables = []
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda profiler: tables.append(profiler.key_averages().table()),
        profile_memory=True,
    ) as profiler:
        for _ in range(2):
            _ = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
            profiler.step()
    assert "aten::mm" in tables[0]


def test_the_profiler_runs_over_virtual_work_without_complaint():
    assert not [text for _, text in rehearse(profiled_work).err if "Failed" in text]


@on_gpu()
def test_sync_debug_mode_is_kept():
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    with warnings.catch_warnings(record=True):
        torch.ones(1, device="cuda").item()
    torch.cuda.set_sync_debug_mode(0)


@on_gpu()
def test_data_parallel_helpers_of_torch_cuda_comm_work():
    from torch.nn.parallel import comm

    parts = comm.scatter(torch.arange(8.0, device="cuda"), [0, 1])
    assert [part.device.index for part in parts] == [0, 1]
    assert comm.gather(parts, destination=0).tolist() == list(range(8))
    copies = comm.broadcast(torch.ones(2, device="cuda"), [0, 1])
    assert comm.reduce_add(copies, 0).tolist() == [2, 2]


@on_gpu()
def test_data_parallel_runs_over_several_cards():
    model = torch.nn.DataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[0, 1])
    out = model(torch.ones(8, 4, device="cuda"))
    assert out.shape == (8, 2)
    out.sum().backward()
    assert model.module.weight.grad is not None


def _train_on_two_cards() -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[0, 1])
    for _ in range(30):
        model(torch.ones(8, 4, device="cuda")).sum().backward()


def test_work_on_several_cards_of_one_process_is_noted():
    assert len(rehearse(_train_on_two_cards).notes("several cards")) == 1
