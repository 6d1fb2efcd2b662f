"""TensorParallel: every layer of a model split over the ranks of a group, as in Megatron-LM.

    parallel = TensorParallel(model)                     # known layers; or plan=TensorPlan({"mlp.up": "column", ...})
    optimizer = torch.optim.AdamW(model.parameters())    # afterwards: the parameters are new
    for tokens, targets in loader:                       # all ranks of the group see the same batch
        parallel.cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

The first matrix of an MLP is split by columns, the second by rows; each rank has some of the attention heads; so a
layer needs two all-reduces forward and two backward, each of b*s*h numbers. The model is changed in place, keeps the
names of its parameters, and is called as before; a split head returns this rank's logits. To combine it with data
parallelism, give this one the group of ranks that share a replica, and the other the group with the same share.

Shoeybi et al., Megatron-LM, 2019 (arXiv:1909.08053); Korthikanti et al., 2022 (arXiv:2205.05198).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.cross_entropy import cross_entropy
from sandtable.methods.tensor.dropout import start_equal
from sandtable.methods.tensor.group import TensorGroup, TensorTraffic
from sandtable.methods.tensor.plan import TensorPlan
from sandtable.methods.tensor.plans import find_plan
from sandtable.methods.tensor.splitting import split_model
from sandtable.methods.tensor.styles import SplitStyle

__all__ = ["TensorParallel"]


class TensorParallel:
    """Splits a model over a group. All ranks start with the weights of the first, and with the same seed.

    `plan`: a `TensorPlan`, or a dictionary of styles by pattern; None for models whose layers are known.
    `sequence_parallel`: between split layers each rank keeps its share of the tokens, which are in `sequence_dim`.
    A model that was refused may be partly split: build it again.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: TensorPlan | Mapping[str, str | SplitStyle] | None = None,
        group: dist.ProcessGroup | None = None,
        sequence_parallel: bool = False,
        sequence_dim: int = 1,
    ) -> None:
        self.group = TensorGroup(group)
        if plan is None:
            self.plan = find_plan(model)
        else:
            self.plan = plan if isinstance(plan, TensorPlan) else TensorPlan(plan)
        if sequence_parallel and not self.plan.sequence:
            raise MethodError(
                "sequence parallelism must know between which modules to split the tokens, but the plan does not "
                'say; give it TensorPlan(..., sequence=("blocks.*", "norm")), or use sequence_parallel=False'
            )
        if sequence_parallel and getattr(getattr(model, "config", None), "add_cross_attention", False):
            raise MethodError(
                "with sequence parallelism every layer must read only its own tokens, but this model's layers also "
                "read an encoder's (config.add_cross_attention); use sequence_parallel=False"
            )
        self._model = model
        self._start_equal()
        self._layouts = split_model(
            model, self.plan, self.group, sequence_dim=sequence_dim if sequence_parallel else None
        )

    @property
    def traffic(self) -> TensorTraffic:
        """Collectives and bytes of this rank since the start, or since `traffic.reset()`."""
        return self.group.traffic

    def cross_entropy(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> Tensor:
        """Compute `F.cross_entropy` of this rank's logits [..., vocabulary / ranks] and targets [...]."""
        return cross_entropy(
            logits,
            targets,
            self.group,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )

    def full_state_dict(self) -> dict[str, Any]:
        """Return the state of the unsplit model, on every rank. All ranks call it."""
        state = self._model.state_dict()
        return {name: self.full_tensor(name, value) for name, value in state.items()}

    @torch.no_grad()
    def load_full_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's share of the state of an unsplit model."""
        own = self._model.state_dict()
        shares = {
            name: self._layouts[name].take(value, self.group, name) if name in self._layouts else value
            for name, value in state.items()
        }
        self._model.load_state_dict({name: _as_held(value, own.get(name)) for name, value in shares.items()})

    @torch.no_grad()
    def full_tensor(self, name: str, share: Tensor) -> Tensor:
        """Return the whole of the parameter `name`, or of its gradient or optimizer state, from this rank's share.

        All ranks call it. What is not split is returned unchanged.
        """
        share = _gathered(share)
        if name not in self._layouts:
            return share
        return self._layouts[name].join(self.group.all_gather(share.unsqueeze(0), dim=0).unbind())

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_`, by the norm of the unsplit gradients. All ranks call it."""
        parameters = self._model.named_parameters()
        named = [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]
        squares = torch.zeros(2, device=next(self._model.parameters()).device, dtype=torch.float64)
        for name, gradient in named:
            squares[int(name in self._layouts)] += _gathered(gradient.double().square().sum())
        norm = (squares[0] + self.group.all_reduce(squares[1])).sqrt()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for _, gradient in named:
            (gradient.to_local() if _is_sharded(gradient) else gradient).mul_(scale)  # type: ignore[attr-defined]
        return norm

    def _start_equal(self) -> None:
        tensors = [*self._model.parameters(), *self._model.buffers()]
        for tensor in tensors:
            if tensor.is_meta:
                raise MethodError(
                    "a model must have its weights when it is split, but some are on the meta device; "
                    "call model.to_empty(device=...) and initialise it first"
                )
            raw = tensor.detach().contiguous()
            self.group.wire.broadcast(raw.view(torch.uint8) if raw.dtype == torch.bool else raw)
            if raw.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(raw)
        start_equal(self.group, tensors[0].device)


def _is_sharded(tensor: Any) -> bool:
    """Return whether it is a DTensor, as FSDP2 makes them; known by its method, since the import is slow."""
    return hasattr(tensor, "full_tensor")


def _gathered(tensor: Any) -> Tensor:
    """Gather what the ranks of FSDP2 hold of it; they all call it."""
    whole: Tensor = tensor.full_tensor() if _is_sharded(tensor) else tensor
    return whole


def _as_held(value: Any, held: Any) -> Any:
    """Return the value, sharded as the model's own is."""
    if not _is_sharded(held):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, held.device_mesh, held.placements)
