"""The launchers inside frameworks. Each test is skipped where its framework is not installed."""

import pytest
from tests.vgpu.own_ranks import capture, write_script

from sandtable import rehearse_command

LIGHTNING = """
import sys

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    print("begins")
    strategy, devices, num_nodes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=devices,
        num_nodes=num_nodes,
        strategy=strategy,
        max_steps=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(8192, 16), batch_size=4))
"""

FABRIC = """
import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cuda", devices=4, strategy="ddp")
fabric.launch()
model = torch.nn.Linear(16, 4)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(5):
    fabric.backward(model(torch.randn(4, 16, device=fabric.device)).sum())
    optimizer.step()
    optimizer.zero_grad()
"""

ACCELERATE = """
import torch
from accelerate import Accelerator, notebook_launcher


def train():
    accelerator = Accelerator()
    model = torch.nn.Linear(16, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(5):
        accelerator.backward(model(torch.randn(4, 16, device=accelerator.device)).sum())
        optimizer.step()
        optimizer.zero_grad()


notebook_launcher(train, num_processes=4)
"""


@pytest.mark.parametrize(
    ("strategy", "devices", "num_nodes", "given_nodes"),
    [("ddp", 4, 1, 1), ("ddp", 8, 128, 1), ("ddp_fork", 4, 1, 1), ("ddp_spawn", 4, 2, 2)],
)
def test_lightning(tmp_path, strategy, devices, num_nodes, given_nodes):
    pytest.importorskip("lightning")
    script = write_script(tmp_path, LIGHTNING, head="")
    captured = capture(script, strategy, str(devices), str(num_nodes), nodes=given_nodes)
    assert captured.trace.world_size == devices * num_nodes
    assert captured.trace.num_steps == 2
    assert captured.lines.count((0, "begins")) == 1


def test_fabric(tmp_path):
    pytest.importorskip("lightning")
    trace = capture(write_script(tmp_path, FABRIC, head="")).trace
    assert (trace.world_size, trace.num_steps) == (4, 2)


def test_fabrics_command(tmp_path):
    pytest.importorskip("lightning")
    text = FABRIC.replace('accelerator="cuda", devices=4, strategy="ddp"', "")
    script = write_script(tmp_path, text.replace("fabric.launch()", "assert fabric.world_size == 4"), head="")
    command = f"fabric run --accelerator cuda --devices 2 --num-nodes 2 --strategy ddp {script}"
    assert rehearse_command(command, steps=2).trace.num_steps == 2


def test_accelerate_in_a_notebook(tmp_path):
    pytest.importorskip("accelerate")
    trace = capture(write_script(tmp_path, ACCELERATE, head="")).trace
    assert (trace.world_size, trace.num_steps) == (4, 2)
