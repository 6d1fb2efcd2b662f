"""The caching allocator: every figure here is computed by hand from PyTorch's published rules.

Sizes are rounded up to 512 bytes. Up to 1 MiB come from segments of 2 MiB (the small pool), up to 10 MiB from segments
of 20 MiB, larger ones from segments of their own, rounded up to 2 MiB (the large pool). What is left of a block is
split off, in the small pool from 512 bytes on, in the large pool above 1 MiB; free neighbours are merged.
"""

import gc

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.cluster import load
from sandtable.trace import Kind
from sandtable.vgpu.capture import CONTEXT_BYTES

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def usage() -> tuple[int, int]:
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


# ---- rounding and pools ----


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (1 * MIB, 1 * MIB, 2 * MIB),
        (1 * MIB + 1, 1 * MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB - 1, 11 * MIB, 12 * MIB),
        (100 * MIB, 100 * MIB, 100 * MIB),
    ],
)
@on_gpu()
def test_a_request_is_rounded_and_its_segment_sized_as_pytorch_does(size: int, allocated: int, reserved: int):
    held = block(size)
    # A block of a large segment whose rest is at most 1 MiB is handed out whole.
    whole = reserved if allocated > MIB and reserved - allocated <= MIB else allocated
    assert usage() == (whole, reserved), held


@on_gpu()
def test_an_empty_tensor_takes_nothing():
    held = torch.empty(0, device="cuda")
    assert usage() == (0, 0)
    assert held.data_ptr() == 0


@on_gpu()
def test_small_blocks_share_a_segment_and_large_ones_another():
    held = [block(512 * KIB) for _ in range(3)]
    assert usage() == (1536 * KIB, 2 * MIB)
    held.append(block(512 * KIB))
    assert usage() == (2 * MIB, 2 * MIB)
    held.append(block(1))
    assert usage() == (2 * MIB + 512, 4 * MIB)
    held += [block(9 * MIB), block(9 * MIB)]
    assert usage() == (20 * MIB + 512, 24 * MIB)
    stats = torch.cuda.memory_stats()
    assert stats["segment.small_pool.current"] == 2
    assert stats["segment.large_pool.current"] == 1
    assert stats["allocation.all.current"] == 7
    assert stats["allocated_bytes.small_pool.current"] == 2 * MIB + 512
    assert stats["allocated_bytes.large_pool.current"] == 18 * MIB
    assert stats["reserved_bytes.large_pool.current"] == 20 * MIB
    assert stats["requested_bytes.all.current"] == 20 * MIB + 1
    # 2 MiB - 512 of the second small segment, 2 MiB of the large one.
    assert stats["inactive_split_bytes.all.current"] == 4 * MIB - 512
    assert stats["inactive_split.all.current"] == 2
    del held


@on_gpu()
def test_a_freed_block_is_used_again_best_fit_first():
    first, gap, second = block(256 * KIB), block(64 * KIB), block(128 * KIB)
    fence = block(KIB)
    at_first, at_second = first.data_ptr(), second.data_ptr()
    del first, second
    assert block(128 * KIB).data_ptr() == at_second
    assert block(256 * KIB).data_ptr() == at_first
    assert torch.cuda.memory_reserved() == 2 * MIB
    assert gap.numel()
    assert fence.numel()


@on_gpu()
def test_free_neighbours_are_merged():
    parts = [block(512 * KIB) for _ in range(4)]
    start = parts[0].data_ptr()
    assert [part.data_ptr() - start for part in parts] == [0, 512 * KIB, 1024 * KIB, 1536 * KIB]
    del parts[1:3]
    joined = block(1 * MIB)
    assert joined.data_ptr() == start + 512 * KIB
    assert torch.cuda.memory_reserved() == 2 * MIB
    parts.clear()
    del joined
    gc.collect()
    stats = torch.cuda.memory_stats()
    assert stats["inactive_split.all.current"] == 0
    assert stats["active.all.current"] == 0


@on_gpu()
def test_a_large_block_is_not_split_for_a_rest_of_a_mebibyte():
    held = block(19 * MIB)
    del held
    assert usage() == (0, 20 * MIB)
    again = block(19 * MIB)
    assert usage() == (20 * MIB, 20 * MIB)  # 1 MiB is left: not more than 1 MiB, so it is not split off
    del again
    smaller = block(18 * MIB)
    assert usage() == (18 * MIB, 20 * MIB)
    assert smaller.numel() == 18 * MIB


@on_gpu()
def test_streams_have_pools_of_their_own():
    held = block(100 * KIB)
    del held
    with torch.cuda.stream(torch.cuda.Stream()):
        other = block(100 * KIB)
    assert usage() == (100 * KIB, 4 * MIB)
    del other


@on_gpu()
def test_cards_are_counted_apart():
    held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:2")
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_allocated(2) == torch.cuda.memory_allocated("cuda:2") == held.nbytes
    assert torch.cuda.memory_reserved(2) == 20 * MIB


# ---- figures over time ----


@on_gpu()
def test_peaks_are_kept_until_reset():
    held = block(30 * MIB)
    del held
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == 30 * MIB
    assert torch.cuda.max_memory_reserved() == 30 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert torch.cuda.max_memory_reserved() == 30 * MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_max_memory_allocated()
    assert torch.cuda.max_memory_reserved() == 0
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 30 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] == 0


@on_gpu()
def test_empty_cache_gives_back_segments_that_are_wholly_free():
    kept, gone = block(MIB), block(50 * MIB)
    del gone
    assert usage() == (MIB, 52 * MIB)
    torch.cuda.empty_cache()
    assert usage() == (MIB, 2 * MIB)
    assert torch.cuda.memory_stats()["num_device_free"] == 1
    del kept
    torch.cuda.empty_cache()
    assert usage() == (0, 0)
    assert torch.cuda.memory_stats()["segment.all.current"] == 0


@on_gpu()
def test_free_memory_of_the_card_is_capacity_less_context_and_segments():
    capacity = load("dgx-a100").device.memory_bytes
    assert torch.cuda.mem_get_info() == (capacity - CONTEXT_BYTES, capacity)
    held = block(GIB)
    assert torch.cuda.mem_get_info()[0] == capacity - CONTEXT_BYTES - held.nbytes
    assert torch.cuda.mem_get_info(1)[0] == capacity - CONTEXT_BYTES


@on_gpu()
def test_the_summary_is_pytorchs_table():
    held = block(30 * MIB)
    summary = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in summary
    assert "30720 KiB" in summary or "30.0 MiB" in summary or "30 MiB" in summary, summary
    assert "Peak Usage" in torch.cuda.memory_summary(abbreviated=True)
    assert held.numel()


@on_gpu()
def test_the_snapshot_lists_segments_and_blocks():
    small, large = block(100 * KIB), block(12 * MIB)
    segments = {segment["segment_type"]: segment for segment in torch.cuda.memory_snapshot()}
    assert {kind: segment["total_size"] for kind, segment in segments.items()} == {"small": 2 * MIB, "large": 12 * MIB}
    assert segments["small"]["allocated_size"] == 100 * KIB
    first, rest = segments["small"]["blocks"]
    assert (first["size"], first["state"], first["address"]) == (100 * KIB, "active_allocated", small.data_ptr())
    assert (rest["size"], rest["state"]) == (2 * MIB - 100 * KIB, "inactive")
    assert segments["large"]["blocks"][0]["address"] == large.data_ptr()
    assert segments["large"]["blocks"][0]["requested_size"] == 12 * MIB


def test_memory_history_can_be_recorded_and_dumped(tmp_path):
    rehearse(dump_history, arguments={"path": str(tmp_path / "snapshot.pickle")})
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0


def dump_history(path: str) -> None:
    torch.cuda.memory._record_memory_history(max_entries=100)
    block(MIB)
    torch.cuda.memory._dump_snapshot(path)


@on_gpu()
def test_the_raw_allocator_can_be_used():
    pointer = torch.cuda.caching_allocator_alloc(4096)
    assert torch.cuda.memory_allocated() == 4096
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.get_allocator_backend() == "native"


@on_gpu()
def test_a_memory_pool_context_is_accepted():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = block(MIB)
    assert held.numel()


# ---- running out ----


@on_gpu()
def test_more_than_the_card_holds_is_out_of_memory_with_the_usual_words():
    held = block(60 * GIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(30 * GIB)
    text = str(caught.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has a total capacity of ")
    assert "60.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated" in text
    assert "expandable_segments:True" in text
    assert isinstance(caught.value, RuntimeError)
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert held.numel()


@on_gpu()
def test_out_of_memory_names_the_lines_that_hold_the_most():
    most = torch.empty(50 * GIB, dtype=torch.uint8, device="cuda")
    some = [torch.empty(2 * GIB, dtype=torch.uint8, device="cuda") for _ in range(5)]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(40 * GIB)
    lines = str(caught.value).partition("hold the most memory:")[2].strip().splitlines()
    assert "50.00 GiB" in lines[0]
    assert f"{__file__}:" in lines[0]
    assert "10.00 GiB" in lines[1]
    assert most.numel()
    assert some


@on_gpu()
def test_a_script_can_recover_from_out_of_memory():
    size = 128
    while True:
        try:
            held = block(size * GIB)
            break
        except torch.OutOfMemoryError:
            size //= 2
    assert size == 64
    del held
    assert block(70 * GIB).numel() == 70 * GIB


@on_gpu()
def test_cached_memory_is_given_back_before_memory_is_out():
    held = block(60 * GIB)
    del held
    assert torch.cuda.memory_reserved() == 60 * GIB
    again = block(61 * GIB)
    assert torch.cuda.memory_reserved() == again.numel() == 61 * GIB
    stats = torch.cuda.memory_stats()
    assert stats["num_alloc_retries"] == 1
    assert stats["num_ooms"] == 0


@on_gpu()
def test_a_process_can_be_held_to_a_fraction_of_the_card():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    # As PyTorch does it: the fraction bounds what the allocator reserves, the context does not count.
    held = block(int(total * 0.5) // (2 * MIB) * 2 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"is allowed|out of memory"):
        block(2 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert block(2 * MIB).numel()
    assert held.numel()


def runs_out() -> None:
    import contextlib

    with contextlib.suppress(torch.OutOfMemoryError):
        block(500 * GIB)


def test_a_capture_counts_out_of_memory_and_the_peaks():
    memory = rehearse(runs_out).trace.rank(0).memory
    assert memory.num_ooms == 1
    assert memory.capacity_bytes == load("dgx-a100").device.memory_bytes


def goes_up_and_down() -> None:
    held = block(30 * MIB)
    more = block(2 * MIB)
    del held, more
    torch.cuda.empty_cache()


def test_allocations_and_segments_are_on_record():
    view = rehearse(goes_up_and_down).trace.rank(0)
    kind, value = view.records.kind, view.records.value
    assert value[kind == Kind.ALLOC].tolist() == [30 * MIB, 2 * MIB]
    assert sorted(value[kind == Kind.FREE].tolist()) == [2 * MIB, 30 * MIB]  # frees in a row have an order of their own
    assert value[kind == Kind.SEGMENT_ALLOC].tolist() == [30 * MIB, 20 * MIB]
    assert sorted(value[kind == Kind.SEGMENT_FREE].tolist()) == [20 * MIB, 30 * MIB]
    assert view.memory.allocated_bytes == 32 * MIB
    assert view.memory.reserved_bytes == 50 * MIB
    assert view.memory_timeline()[1].tolist() in ([30 * MIB, 32 * MIB, 2 * MIB, 0], [30 * MIB, 32 * MIB, 30 * MIB, 0])


# ---- memory and streams ----


@on_gpu()
def test_memory_used_by_another_stream_is_not_handed_out_at_once():
    side = torch.cuda.Stream()
    held = block(30 * MIB)
    held.record_stream(side)
    del held
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["active_bytes.all.current"] == 30 * MIB
    torch.cuda.synchronize()
    again = block(30 * MIB)
    assert torch.cuda.memory_reserved() == 30 * MIB
    assert again.numel()


@on_gpu()
def test_views_share_memory_and_keep_it():
    base = block(MIB)
    view = base[10:20]
    del base
    assert torch.cuda.memory_allocated() == MIB
    assert view.untyped_storage().nbytes() == MIB
    del view
    assert torch.cuda.memory_allocated() == 0


@on_gpu()
def test_a_storage_can_be_freed_and_brought_back():
    held = block(4 * MIB)
    held.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == 0
    assert held.shape == (4 * MIB,)
    held.untyped_storage().resize_(4 * MIB)
    assert torch.cuda.memory_allocated() == 4 * MIB


@on_gpu()
def test_parameters_gradients_and_adam_states_take_what_they_count():
    model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    size = 4 * MIB
    assert torch.cuda.memory_allocated() == size
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    gc.collect()
    assert torch.cuda.memory_allocated() == 2 * size
    optimizer.step()
    assert torch.cuda.memory_allocated() == 4 * size  # the step counters are on the host
    optimizer.zero_grad(set_to_none=True)
    assert torch.cuda.memory_allocated() == 3 * size


@on_gpu()
def test_no_grad_keeps_no_activations():
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
    x = torch.ones(4096, 512, device="cuda")
    base = torch.cuda.memory_allocated()
    with torch.no_grad():
        y = layers(x)
    assert torch.cuda.memory_allocated() == base + y.nbytes
    assert torch.cuda.max_memory_allocated() <= base + 2 * y.nbytes + 2 * MIB


def test_memory_of_the_fork_server_is_not_the_ranks():
    assert rehearse(allocate_nothing).trace.rank(0).memory.allocated_bytes == 0


def allocate_nothing() -> None:
    assert usage() == (0, 0)
    assert torch.cuda.max_memory_allocated() == 0
