"""Between host, card and disk: pinned memory, data loaders, saved files and distributed checkpoints."""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="arg-type,attr-defined,type-arg,union-attr,var-annotated"

import io

import pytest
import torch
from tests.vgpu.virtual import Rehearsal, on_gpu, rehearse
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sandtable.trace import Kind, SyncKind

CARD = torch.device("cuda:0")


def syncs(done: Rehearsal) -> list[SyncKind]:
    records = done.trace.rank(0).records
    return [SyncKind(int(value)) for value in records.value[records.kind == Kind.HOST_SYNC]]


# ---- weights and data on the host ----


@on_gpu()
def test_a_model_larger_than_the_host_is_built_there_without_taking_its_memory():
    import resource

    def most_used_bytes() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    before = most_used_bytes()
    model = nn.Linear(1 << 15, 1 << 15, bias=False)  # 4 GiB
    with torch.no_grad():
        nn.Parameter(torch.empty(1 << 28)).normal_()  # 1 GiB
    assert most_used_bytes() - before < 1 << 28
    assert model.cuda().weight.device == CARD
    assert torch.cuda.memory_allocated() == 4 << 30


@on_gpu()
def test_a_checkpoint_larger_than_the_host_is_loaded_there_without_taking_its_memory():
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model, other = (
        nn.Sequential(nn.Linear(1 << 15, 1 << 15), nn.LayerNorm(8)),
        nn.Linear(1 << 15, 1 << 15),
    )  # 4 GiB each
    saved = {"0.weight": other.weight.detach(), "0.bias": torch.ones(1 << 15), "1.bias": torch.ones(8), "2.bias": None}
    weights = dict(saved)
    result = model.load_state_dict(saved, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["1.weight"], ["2.bias"])
    assert model.get_parameter("0.bias").sum() == 1 << 15, "a small one is loaded"
    assert all(saved[name] is weights[name] for name in weights), "the checkpoint stays as it was"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < 1 << 28
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        nn.Linear(1 << 10, 1 << 10).load_state_dict({"weight": torch.ones(4, 4)}, strict=False)


@on_gpu()
def test_large_data_on_the_host_is_filled():
    noise = torch.full((1 << 20,), -1.0).uniform_(2, 3)
    assert 2 <= noise.min() < noise.max() <= 3
    assert torch.empty(1 << 20).normal_(mean=100).mean() > 90


# ---- pinned memory and copies ----


@on_gpu()
def test_pinned_memory_says_it_is_pinned_and_keeps_its_values():
    x = torch.arange(10.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned[3:].is_pinned()
    assert pinned.tolist() == x.tolist()
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert torch.zeros(4, pin_memory=True).tolist() == [0, 0, 0, 0]
    assert pinned.pin_memory() is pinned
    assert pinned.untyped_storage().is_pinned()
    assert pinned.cuda(non_blocking=True).tolist() == x.tolist()
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]).pin_memory()
    assert packed.is_pinned()
    assert packed.to(CARD).data.is_cuda


def copy_every_way() -> None:
    pinned, pageable = torch.zeros(1024).pin_memory(), torch.zeros(1024)
    card = pinned.to(CARD, non_blocking=True)
    pinned.copy_(card, non_blocking=True)
    pageable.to(CARD)
    card.cpu()
    card.to("cuda:1")


def test_only_blocking_copies_make_the_host_wait():
    done = rehearse(copy_every_way)
    assert syncs(done) == [SyncKind.COPY, SyncKind.COPY]
    ops = [operator.signature.op for operator in done.trace.rank(0).operators()]
    assert ops.count("copy::host_to_device") == 2
    assert ops.count("copy::device_to_host") == 2
    assert ops.count("copy::device_to_device") == 1


@on_gpu()
def test_copies_convert_types_and_broadcast():
    x = torch.zeros(2, 3, device=CARD)
    x.copy_(torch.tensor([1, 2, 3]))
    assert x.tolist() == [[1, 2, 3]] * 2
    host = torch.zeros(2, 3, dtype=torch.float64)
    host.copy_(x)
    assert host.tolist() == [[1, 2, 3]] * 2
    assert x.to("cpu", torch.int32).dtype == torch.int32
    assert x.to(CARD) is x
    assert x.to(CARD, copy=True) is not x
    assert x.cpu().to("cuda").tolist() == x.tolist()
    assert x.to(torch.zeros(1, dtype=torch.bfloat16, device="cuda:1")).device.index == 1
    assert x.cuda(2).get_device() == 2
    assert x.type(torch.float16).dtype == torch.float16
    assert x.type() == "torch.cuda.FloatTensor"


@on_gpu()
def test_dlpack_and_numpy_go_through_the_host():
    assert torch.from_numpy(torch.ones(3).numpy()).cuda().cpu().numpy().sum() == 3
    assert torch.ones(3, device=CARD).detach().cpu().numpy().tolist() == [1, 1, 1]


# ---- data loaders ----


class Squares(Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        return {"x": torch.full((4,), float(index)), "y": index * index}


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from ((torch.tensor([float(info.id if info else -1)])) for _ in range(4))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@on_gpu()
def test_a_data_loader_gives_pinned_batches_in_order(workers: int, persistent: bool):
    torch.ones(1, device=CARD)
    loader = DataLoader(
        Squares(), batch_size=8, num_workers=workers, pin_memory=True, persistent_workers=persistent, drop_last=True
    )
    for _ in range(2):
        seen = []
        for batch in loader:
            assert batch["x"].is_pinned()
            assert batch["y"].is_pinned()
            x = batch["x"].to(CARD, non_blocking=True)
            assert x.shape == (8, 4)
            assert x.is_cuda
            seen += batch["y"].cuda(non_blocking=True).tolist()
        assert seen == [index * index for index in range(32)]


@on_gpu()
def test_a_shuffled_loader_with_workers_covers_the_data():
    data = TensorDataset(torch.arange(16.0).view(16, 1), torch.arange(16))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2, pin_memory=True, prefetch_factor=2)
    assert sorted(y for _, labels in loader for y in labels.tolist()) == list(range(16))
    ids = {batch.item() for batch in DataLoader(Stream(), num_workers=2, batch_size=1)}
    assert ids == {0, 1}


@on_gpu()
def test_a_loader_abandoned_early_leaves_the_rank_to_end():
    for _ in DataLoader(Squares(), batch_size=1, num_workers=2, pin_memory=True):
        break


@on_gpu(ranks=2)
def test_a_distributed_sampler_divides_the_data():
    import torch.distributed as dist
    from torch.utils.data.distributed import DistributedSampler

    dist.init_process_group("nccl")
    sampler = DistributedSampler(Squares(), shuffle=False)
    mine = [y for batch in DataLoader(Squares(), batch_size=4, sampler=sampler) for y in batch["y"].tolist()]
    assert mine == [index * index for index in range(dist.get_rank(), 32, 2)]


# ---- torch.save and torch.load ----


@on_gpu()
def test_known_tensors_are_saved_and_loaded_with_their_values():
    x = torch.arange(6.0, device=CARD).view(2, 3)
    buffer = io.BytesIO()
    torch.save({"x": x, "t": x.t(), "step": 3}, buffer)
    for location, device in (
        (None, "cuda"),
        ("cpu", "cpu"),
        ("cuda:1", "cuda"),
        (CARD, "cuda"),
        ({"cuda:0": "cuda:2"}, "cuda"),
    ):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)
        assert loaded["x"].device.type == device
        assert loaded["x"].tolist() == x.tolist()
        assert loaded["t"].tolist() == x.t().tolist()
        assert loaded["t"].untyped_storage().data_ptr() == loaded["x"].untyped_storage().data_ptr()
    buffer.seek(0)
    assert torch.load(buffer, map_location="cuda:3")["x"].device.index == 3
    buffer.seek(0)
    assert torch.load(buffer, map_location=lambda storage, location: storage)["x"].device.type == "cpu"


def test_a_checkpoint_of_a_model_goes_to_disk_and_back(tmp_path):
    done = rehearse(save_and_load, arguments={"path": str(tmp_path / "checkpoint.pt")})
    assert (tmp_path / "checkpoint.pt").stat().st_size > 4 * 512 * 512
    (note,) = done.notes("zeros saved")
    assert "zeros" in note.text
    assert done.trace.lines[note.line].function == "save_and_load"


def save_and_load(path: str) -> None:
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(2, 512, device=CARD)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}, path)
    for location in ("cpu", "cuda"):
        loaded = torch.load(path, map_location=location, weights_only=True)
        fresh = nn.Linear(512, 512).cuda()
        fresh.load_state_dict(loaded["model"])
        other = torch.optim.AdamW(fresh.parameters())
        other.load_state_dict(loaded["optimizer"])
        assert other.state[fresh.weight]["exp_avg"].is_cuda
        assert other.state[fresh.weight]["step"].item() == 1
        assert torch.isfinite(loaded["model"]["weight"].cpu()).all()


def save_known(path: str) -> None:
    torch.save({"x": torch.ones(4, device=CARD)}, path)
    torch.save({"x": torch.ones(4)}, path + ".host")
    assert torch.load(path + ".host", map_location="cuda")["x"].tolist() == [1, 1, 1, 1]


def test_saving_known_values_leaves_no_note(tmp_path):
    assert not rehearse(save_known, arguments={"path": str(tmp_path / "x.pt")}).notes("zeros saved")


def test_a_saved_file_opens_where_there_is_no_card(tmp_path):
    rehearse(save_known, arguments={"path": str(tmp_path / "x.pt")})
    assert torch.load(tmp_path / "x.pt", map_location="cpu")["x"].tolist() == [1, 1, 1, 1]


# ---- distributed checkpoints ----


def plain_checkpoint(directory: str) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("nccl")
    model = nn.Linear(16, 4).cuda()
    with torch.no_grad():
        model.weight.fill_(3.0)
    dcp.save({"model": model.state_dict()}, checkpoint_id=directory)
    fresh = nn.Linear(16, 4).cuda()
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id=directory)
    fresh.load_state_dict(state["model"])
    assert fresh.weight.cpu().unique().tolist() == [3.0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plain_model_is_checkpointed_by_all_ranks(tmp_path, ranks):
    rehearse(plain_checkpoint, ranks=ranks, arguments={"directory": str(tmp_path)})
    assert (tmp_path / ".metadata").exists()


def sharded_checkpoint(directory: str) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())

    def make():
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = make()
    model(torch.rand(2, 64, device="cuda")).sum().backward()
    optimizer.step()
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=directory)
    fresh, other = make()
    weights, states = get_state_dict(fresh, other)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=directory)
    set_state_dict(fresh, other, model_state_dict=weights, optim_state_dict=states)
    assert fresh[0].weight.to_local().is_cuda
    fresh(torch.rand(2, 64, device="cuda")).sum().backward()
    other.step()


def test_a_sharded_model_and_its_optimizer_are_checkpointed(tmp_path):
    rehearse(sharded_checkpoint, ranks=2, arguments={"directory": str(tmp_path)})
    assert (tmp_path / ".metadata").exists()
    assert len(list(tmp_path.glob("*.distcp"))) == 2


def full_state_checkpoint(path: str) -> None:
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = nn.Linear(64, 64).cuda()
    fully_shard(model)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    full = get_model_state_dict(model, options=options)
    if dist.get_rank() == 0:
        assert full["weight"].shape == (64, 64)
        assert full["weight"].device.type == "cpu"
        torch.save(full, path)
    dist.barrier()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full if dist.get_rank() == 0 else {}, options=options)


def test_a_sharded_model_is_gathered_on_the_first_rank(tmp_path):
    rehearse(full_state_checkpoint, ranks=2, arguments={"path": str(tmp_path / "full.pt")})
    assert torch.load(tmp_path / "full.pt")["weight"].shape == (64, 64)


def async_checkpoint(directory: str) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("cpu:gloo,cuda:nccl")
    model = nn.Linear(16, 4).cuda()
    dcp.async_save({"model": model.state_dict()}, checkpoint_id=directory).result()


def test_a_checkpoint_can_be_written_in_the_background(tmp_path):
    rehearse(async_checkpoint, ranks=2, arguments={"directory": str(tmp_path)})
    assert (tmp_path / ".metadata").exists()
