# rule: step-beside-engine
# source: own
import deepspeed
import torch
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": False},
}


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x):
        return self.f(x)


def main():
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)  # <-- here
    data = torch.utils.data.TensorDataset(torch.randn(64, 16))
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=CONFIG
    )
    for (x,) in loader:
        x = x.to(engine.device)
        loss = nn.functional.mse_loss(engine(x), x)
        engine.backward(loss)
        optimizer.step()  # <-- here
        optimizer.zero_grad()
        engine.step()  # <-- here


if __name__ == "__main__":
    main()
