"""Train a mixture-of-experts GPT with expert parallelism that drops no token.

    torchrun --standalone --nproc-per-node 4 examples/moe.py --experts 8 --top-k 2

Attention is data parallel. In place of one MLP a block has `--experts` of them, spread over the `--ep` ranks of an
expert-parallel group, and a router that sends each token to the best `--top-k`. Ranks first tell each other how many
tokens each expert gets, then exchange the tokens by `all_to_all` with these sizes, run their experts, and send the
results back. How long a rank works and how much memory it needs depends on how popular its experts are.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt_model import (
    GPT,
    Block,
    GPTConfig,
    add_model_arguments,
    config_from,
    cross_entropy,
    materialize,
    synthetic_batch,
)
from job import Job, require_divides, start
from torch import Tensor, nn


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    ep = args.ep or job.world_size
    require_divides(ep, job.world_size, names=("ep", "the number of ranks"))
    require_divides(ep, args.experts, names=("ep", "experts"))
    # Ranks next to each other share the experts; ranks `ep` apart hold the same ones.
    mesh = dist.init_device_mesh(job.device.type, (job.world_size // ep, ep), mesh_dim_names=("replica", "expert"))
    config = config_from(args)
    with torch.device("meta"):
        model = GPT(config)
        for layer in model.blocks:
            model.blocks[layer] = MixtureBlock(config, args.experts, args.top_k, mesh.get_group("expert"))
    materialize(model, config, device=job.device, seed=args.seed)
    model.to(getattr(torch, args.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    for step in range(1, args.steps + 1):
        first = ((step - 1) * job.world_size + job.rank) * args.micro_batch
        tokens, targets = synthetic_batch(config, first=first, count=args.micro_batch)
        loss = cross_entropy(model(tokens.to(job.device)), targets.to(job.device))
        loss.backward()
        average_gradients(model, job, mesh.get_group("replica"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = loss.detach().clone()
        dist.all_reduce(total)
        job.print_loss(step, total.item() / job.world_size)
    job.finish()


def average_gradients(model: nn.Module, job: Job, replicas: dist.ProcessGroup) -> None:
    """Average gradients over all ranks; an expert has seen the tokens of its whole group already."""
    for name, param in model.named_parameters():
        if param.grad is None:  # no token chose this expert
            param.grad = torch.zeros_like(param)
        dist.all_reduce(param.grad, group=replicas if ".experts." in name else None)
        param.grad /= job.world_size


class MixtureBlock(Block):
    """A transformer layer whose MLP is a mixture of experts, `ep` of the ranks holding a share each."""

    def __init__(self, config: GPTConfig, num_experts: int, top_k: int, group: dist.ProcessGroup) -> None:
        super().__init__(config)
        del self.fc1, self.fc2
        self.group, self.top_k, self.num_experts = group, top_k, num_experts
        self.ep = dist.get_world_size(group)
        self.num_local = num_experts // self.ep
        first = dist.get_rank(group) * self.num_local
        self.router = nn.Linear(config.hidden_size, num_experts, bias=False)
        # Experts are named by their number in the whole layer: they start with the same values however they are split.
        self.experts = nn.ModuleDict({str(expert): Expert(config) for expert in range(first, first + self.num_local)})

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, seq, hidden] to the same shape."""
        x = x + self.proj(self.attend(self.qkv(self.ln1(x))))
        return x + self.mix(self.ln2(x).flatten(0, 1)).view_as(x)

    def mix(self, tokens: Tensor) -> Tensor:
        """Send each token to its experts, and add up what they return, weighted by the router's scores."""
        scores = self.router(tokens).float().softmax(dim=-1)
        weights, experts = scores.topk(self.top_k, dim=-1)
        order = experts.flatten().argsort(stable=True)  # copies of tokens, by expert
        counts = torch.bincount(experts.flatten(), minlength=self.num_experts)
        token_of = order // self.top_k
        returned = self.run_experts(tokens[token_of], counts)
        weighted = returned * weights.flatten()[order].unsqueeze(-1).to(returned.dtype)
        return torch.zeros_like(tokens).index_add(0, token_of, weighted)

    def run_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the experts' results for `rows`, which are sorted by expert, `counts` of each."""
        received_counts = torch.empty_like(counts)
        dist.all_to_all_single(received_counts, counts, group=self.group)
        by_sender = received_counts.view(self.ep, self.num_local)
        send_sizes = counts.view(self.ep, self.num_local).sum(1).tolist()
        receive_sizes = by_sender.sum(1).tolist()
        received = Exchange.apply(rows, send_sizes, receive_sizes, self.group)
        # Rows come sorted by sender, and of each sender by expert.
        local_expert = torch.arange(self.num_local, device=rows.device).repeat(self.ep)
        by_expert = local_expert.repeat_interleave(received_counts).argsort(stable=True)
        parts = received[by_expert].split(by_sender.sum(0).tolist())
        results = torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])
        unsorted = torch.zeros_like(results).index_copy(0, by_expert, results)
        return Exchange.apply(unsorted, receive_sizes, send_sizes, self.group)


class Expert(nn.Module):
    """One MLP of a mixture."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.fc2 = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map [tokens, hidden] to the same shape."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Exchange(torch.autograd.Function):
    """`all_to_all` of rows, so many to each rank; the gradients go back the same way."""

    @staticmethod
    def forward(ctx, rows: Tensor, send_sizes: list[int], receive_sizes: list[int], group: dist.ProcessGroup) -> Tensor:
        """Send `send_sizes[r]` rows to rank r of the group, and receive `receive_sizes[r]` from it."""
        ctx.sizes, ctx.group = (send_sizes, receive_sizes), group
        received = rows.new_empty(sum(receive_sizes), rows.shape[1])
        dist.all_to_all_single(received, rows.contiguous(), receive_sizes, send_sizes, group=group)
        return received

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the rows to the ranks they came from."""
        send_sizes, receive_sizes = ctx.sizes
        returned = gradient.new_empty(sum(send_sizes), gradient.shape[1])
        dist.all_to_all_single(returned, gradient.contiguous(), send_sizes, receive_sizes, group=ctx.group)
        return returned, None, None, None


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="mixture-of-experts GPT with expert parallelism")
    add_model_arguments(parser)
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per rank in one step")
    parser.add_argument("--experts", type=int, default=8, help="experts per layer")
    parser.add_argument("--top-k", type=int, default=2, help="experts per token")
    parser.add_argument("--ep", type=int, help="ranks that share the experts (default: all)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
