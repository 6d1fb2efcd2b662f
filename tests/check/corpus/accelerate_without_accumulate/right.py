import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(100, 16)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 16))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], -1))


def main():
    accelerator = Accelerator(gradient_accumulation_steps=4)
    torch.manual_seed(accelerator.process_index)
    model = Diffusion()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    loader = DataLoader(TensorDataset(torch.randn(128, 16)), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (x,) in enumerate(loader):
        t = torch.randint(0, 100, (len(x),), device=x.device)
        noise = torch.randn_like(x)
        with accelerator.accumulate(model):
            a = (1 - t / 100).sqrt()[:, None]
            loss = nn.functional.mse_loss(model(a * x + (1 - a**2).sqrt() * noise, t), noise)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print("done", loss.item())


if __name__ == "__main__":
    main()
