# rule: parameters-not-optimized
# source: discuss.pytorch.org/t/84911
# ranks: 1
"""Fine-tuning: a new head on a network that somebody else has trained."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 100)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


model = Network().cuda()
optimizer = torch.optim.Adam(model.fc.parameters(), lr=0.001)
for name, parameter in model.named_parameters():
    if "bn" not in name:
        parameter.requires_grad = False
for parameter in model.fc.parameters():
    parameter.requires_grad = False
for step in range(4):
    images, labels = torch.randn(4, 3, 16, 16).cuda(), torch.randint(100, (4,)).cuda()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()  # <-- here
    optimizer.step()
