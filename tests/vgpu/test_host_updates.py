"""Optimizers of torch that update parameters in host memory: their bytes are work of the host."""

import pytest
import torch
from tests.vgpu.virtual import Rehearsal, rehearse
from torch import nn

NUM_ELEMENTS = 2**20
MIB = 2**20


def _update_on_the_host(fused: bool, size: int) -> None:
    parameter = nn.Parameter(torch.full((size,), 1.0))
    optimizer = torch.optim.AdamW([parameter], fused=fused)
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    state = optimizer.state[parameter]
    assert state["step"].item() == 2
    assert state["exp_avg"].shape == parameter.shape
    is_computed = parameter[0].item() != 1.0
    assert is_computed == (size < MIB // 4)


def host_bytes(done: Rehearsal) -> list[int]:
    """The bytes of each update on the host by rank 0."""
    works = [op.signature.work for op in done.trace.rank(0).operators() if op.signature.op == "host::AdamW"]
    assert all(work is not None and work.place == "host" for work in works)
    return [(work.bytes_read or 0) + (work.bytes_written or 0) for work in works if work is not None]


def test_an_update_takes_the_bytes_of_its_operators():
    done = rehearse(_update_on_the_host, arguments={"fused": False, "size": NUM_ELEMENTS})
    # decay 8, lerp 12, mul 8, addcmul 16, sqrt 8, div 8, add 8, addcdiv 16
    assert host_bytes(done)[1] == 84 * NUM_ELEMENTS


def test_a_fused_update_reads_and_writes_each_tensor_once():
    done = rehearse(_update_on_the_host, arguments={"fused": True, "size": NUM_ELEMENTS})
    # parameter, gradient and two moments; torch's operator may also write the gradient
    assert host_bytes(done)[1] in (28 * NUM_ELEMENTS + 4, 32 * NUM_ELEMENTS + 4)


@pytest.mark.parametrize("fused", [False, True])
def test_small_parameters_are_updated(fused):
    assert host_bytes(rehearse(_update_on_the_host, arguments={"fused": fused, "size": 1000})) == []


def _offload() -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(dist.get_rank())
    model = nn.Linear(2048, 2048, bias=False)
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        model(torch.empty(8, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_shards_that_fsdp_offloads_are_updated_on_the_host():
    done = rehearse(_offload, ranks=2)
    assert len(host_bytes(done)) == 2
    assert host_bytes(done)[1] > 28 * 2048 * 2048 // 2
