"""The peak memory of a training step, as torch's own MemTracker counts it and, on a GPU, as the allocator reports.

    python tests/vgpu/track_memory.py OUT cnn|gpt|gpt-recompute

Runs on the GPU there is, virtual or not, or else on the CPU, with real values. Writes OUT/<device>.json: "tracker" is
MemTracker's peak over one step; "step" is max_memory_allocated() over the step before it, which nobody tracks, and
"tracked_step" over the tracked one, in which MemTracker may hold a tensor a little longer.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import torch
import torch.nn.functional as F
from gpt_model import GPT, SIZES, cross_entropy  # type: ignore[import-not-found]
from resnet_ddp import ResNet  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a step needs. Optimizers are those that torch chooses on a GPU."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]

    def step(self) -> None:
        """Forward, backward, optimizer."""
        self.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def train_cnn(device: torch.device) -> Training:
    """A ResNet-18 of a quarter of the width on eight small pictures."""
    model = ResNet(depth=18, width=16, num_classes=10).to(device)
    return Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True),
        inputs=torch.randn(8, 3, 64, 64, device=device),
        targets=torch.arange(8, device=device),
        loss=F.cross_entropy,
    )


def train_gpt(device: torch.device, *, recompute: bool = False) -> Training:
    """Four layers on four samples of 128 tokens."""
    config = replace(SIZES["tiny"], hidden_size=128, seq_len=128, recompute=recompute)
    model = GPT(config).to(device)
    tokens = torch.arange(4 * 128, device=device).view(4, 128)
    return Training(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), foreach=True),
        inputs=tokens,
        targets=tokens.flip(0),
        loss=cross_entropy,
    )


TRAININGS: dict[str, Callable[[torch.device], Training]] = {
    "cnn": train_cnn,
    "gpt": train_gpt,
    "gpt-recompute": lambda device: train_gpt(device, recompute=True),
}


def main() -> None:
    """Two steps, so that optimizer states are there, then one that is tracked."""
    out, name = Path(sys.argv[1]), sys.argv[2]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training = TRAININGS[name](device)
    training.step()
    figures = {"step": peak_of(training.step, device)}
    tracker = MemTracker()
    tracker.track_external(training.model, training.optimizer, training.inputs, training.targets)
    with tracker:
        figures["tracked_step"] = peak_of(training.step, device)
    figures["tracker"] = sum(
        stats["Total"] for place, stats in tracker.get_tracker_snapshot("peak").items() if place.type == device.type
    )
    (out / f"{device.type}.json").write_text(json.dumps(figures))


def peak_of(step: Callable[[], None], device: torch.device) -> int:
    """The most that is allocated during a step; 0 on the CPU, which does not say."""
    if device.type == "cpu":
        step()
        return 0
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    main()
