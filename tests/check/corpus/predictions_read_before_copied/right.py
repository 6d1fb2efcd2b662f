import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def accuracy(logits, labels):
    pred = logits.argmax(1).to("cpu", non_blocking=True)
    gold = labels.to("cpu", non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return (pred.numpy() == gold.numpy()).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 5)
        self.fc = nn.Linear(16 * 12 * 12, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(x.flatten(1))


def evaluate(model, batches):
    model.eval()
    scores = []
    with torch.no_grad():
        for x, y in batches:
            scores.append(accuracy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True)))
    model.train()
    return sum(scores) / len(scores)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(Net().cuda(), device_ids=[local])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    val = [(torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))) for _ in range(4)]
    for step in range(1, 9):
        x = torch.randn(64, 1, 28, 28).cuda()
        y = torch.randint(0, 10, (64,)).cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 2 == 0:
            acc = evaluate(model, val)
            if dist.get_rank() == 0:
                print(f"step {step} accuracy {acc:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
