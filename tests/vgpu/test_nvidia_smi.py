"""Queries about the node past torch: `nvidia-smi` and pynvml answer for the rehearsed cards."""

from __future__ import annotations

import pytest
import torch
from tests.vgpu.virtual import on_gpu

from sandtable.vgpu.nvidia_smi import answer

CARDS = [
    {
        "index": index,
        "count": 2,
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_bytes": 80 << 30,
        "capability": "8.0",
        "uuid": f"GPU-{index}",
        "bus_id": f"00000000:0{index + 1}:00.0",
        "link": "NV12",
    }
    for index in range(2)
]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-L"], "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"),
        (
            ["--query-gpu=count,name", "--format=csv,noheader"],
            "2, NVIDIA A100-SXM4-80GB\n2, NVIDIA A100-SXM4-80GB\n",
        ),
        (["--query-gpu=index,memory.total", "--format=csv", "--id=1"], "index, memory.total [MiB]\n1, 81920 MiB\n"),
        (["--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "0"], "81920\n"),
        (["--query-compute-apps=pid", "--format=csv,noheader"], ""),
    ],
)
def test_queries(arguments, text):
    assert answer(arguments, CARDS) == (0, text)


def test_an_unknown_field_is_an_error_as_it_is_there():
    assert answer(["--query-gpu=colour", "--format=csv"], CARDS)[0] == 2


def test_what_nothing_here_knows_is_not_available():
    assert answer(["--query-gpu=index,serial,ecc.mode.current", "--format=csv,noheader", "-i", "0"], CARDS) == (
        0,
        "0, [N/A], [N/A]\n",
    )


@pytest.mark.parametrize(
    "arguments", [["-q", "-x"], ["nvlink", "--status"], ["dmon", "-c", "1"], ["topo", "-p2p", "n"]]
)
def test_what_is_not_answered_is_an_error(arguments):
    code, text = answer(arguments, CARDS)
    assert code == 2
    assert "is not answered in a rehearsal" in text


def test_the_topology_shows_links_between_cards():
    assert "NV12" in answer(["topo", "-m"], CARDS)[1].split("Legend")[0]


@on_gpu(cluster="dgx-h100")
def test_programs_and_libraries_see_the_node():
    import shutil
    import subprocess

    import pynvml

    assert shutil.which("nvidia-smi") is not None
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert "NVIDIA H100 80GB HBM3" in listed
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetCount() == torch.cuda.device_count()
    assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetHandleByIndex(100)


@on_gpu()
def test_sensors_read_as_unknown_values_do():
    assert torch.cuda.power_draw() == 1000
    assert [torch.cuda.temperature(), torch.cuda.utilization(), torch.cuda.clock_rate()] == [1, 1, 1]
