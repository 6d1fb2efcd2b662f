"""Cut: split a model into stage modules, each of which takes what the one before it returns.

    stages = cut(model, example_inputs, boundaries=[4, "classifier"])
    for stage in stages:
        values = stage(*values)

A stage takes the tensors that enter it, by position, and returns a tuple of those that leave it; the last stage returns
what the model returns. Stages pass on a tensor that is read further down the pipeline (a skip connection); where only
its shape is read there, they pass on a tensor without elements instead. Parameters are the model's own, under the
model's names, so that the state dicts of the stages together are the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, fx, nn

from sandtable.errors import MethodError
from sandtable.methods.pipeline.trace import TracedModel, trace
from sandtable.methods.pipeline.tracer import DTYPE, OVERWRITES

__all__ = ["Crossing", "StageBuilder", "StageModule", "TiedParameter", "cut", "tied_parameters"]

_MODES = {True: "training", False: "evaluation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedParameter:
    """One parameter that several stages hold: its gradient is the sum of theirs."""

    names: Mapping[int, str]
    """Its name in each stage, by stage number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A tensor that crosses from layer to layer, or only its shape."""

    node: fx.Node
    is_shape: bool = False


class StageModule(fx.GraphModule):
    """Some consecutive layers of a model."""

    @property
    def stage_number(self) -> int:
        """Its number among the stages, from 0."""
        return int(self.meta["number"])

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The names of its layers."""
        return tuple(self.meta["layers"])

    @property
    def tied_stages(self) -> Mapping[str, tuple[int, ...]]:
        """Parameters that other stages hold as well: their names here, and all stages that hold them."""
        return dict(self.meta["tied"])

    def train(self, mode: bool = True) -> StageModule:
        only = self.meta.get("only_mode", mode)
        if mode != only:
            raise MethodError(
                "a model whose layers differ between training and evaluation must be cut once for each, but this stage "
                f"was cut in {_MODES[only]} and is set to {_MODES[mode]}; call model.train({mode}), then cut again"
            )
        super().train(mode)
        return self


def cut(
    model: nn.Module, example_inputs: Tensor | Sequence[Tensor], boundaries: Sequence[int | str] = ()
) -> list[StageModule]:
    """Cut the model into `len(boundaries) + 1` stages; each boundary is the layer, by number or name, that begins one.

    A name may also be that of a module that contains layers; its first layer then begins the stage. Stages that
    overwrite a tensor that enters them (`ReLU(inplace=True)`) work on a copy.
    """
    traced = trace(model, example_inputs)
    starts = (0, *_numbers(traced, boundaries), len(traced))
    entering = [_entering(traced, start) for start in starts[:-1]]
    stages = []
    for number, (start, end) in enumerate(pairwise(starts)):
        leaving = entering[number + 1] if number + 1 < len(entering) else None
        builder = StageBuilder(traced, range(start, end), takes=entering[number], copies=number > 0)
        stages.append(builder.build(leaving))
        stages[-1].meta.update(number=number, layers=traced.names[start:end], tied={})
    _adopt_the_rest(model, stages)
    for tied in tied_parameters(stages):
        for number, name in tied.names.items():
            stages[number].meta["tied"][name] = tuple(tied.names)
    return stages


def tied_parameters(stages: Sequence[nn.Module]) -> list[TiedParameter]:
    """Return the parameters that more than one of the stages holds, however the stages were made."""
    names_of: dict[Tensor, dict[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            names_of.setdefault(parameter, {})[number] = name
    return [TiedParameter(names=names) for names in names_of.values() if len(names) > 1]


class StageBuilder:
    """Makes some layers of a traced model a separate module, which takes the tensors of `takes`.

    With `copies`, the module works on copies of those it overwrites: a stage does not own what enters it.
    """

    def __init__(self, traced: TracedModel, layers: range, *, takes: Sequence[Crossing], copies: bool) -> None:
        self._traced = traced
        self._graph = fx.Graph()
        self._here: dict[fx.Node, fx.Node] = {}
        for crossing in takes:
            name = crossing.node.name
            self._here[crossing.node] = self._graph.placeholder(f"{name}_shape" if crossing.is_shape else name)
        for crossing in takes:
            if crossing.is_shape:
                arguments = (self._here[crossing.node], crossing.node.meta[DTYPE])
                self._here[crossing.node] = self._graph.call_function(of_shape, arguments)
        nodes = [node for node in traced.graph.nodes if traced.layer_of.get(node) in layers]
        if copies:
            for node in self._overwritten(nodes):
                self._here[node] = self._graph.call_function(torch.clone, (self._here[node],))
        for node in nodes:
            self._here[node] = self._graph.node_copy(node, self._take)

    def build(self, gives: Sequence[Crossing] | None) -> StageModule:
        """Return the module; it returns a tuple of `gives`, or what the model returns."""
        if gives is None:
            result = fx.node.map_arg(self._traced.output.args[0], self._take)
        else:
            result = tuple(self._leave(crossing) for crossing in gives)
        self._graph.output(result)
        names = [str(node.target) for node in self._graph.nodes if node.op in ("get_attr", "call_module")]
        for name in names:
            if hasattr(StageModule, name.partition(".")[0]):
                raise MethodError(
                    f"a stage keeps the model's names, so none may clash with its own, but the model has '{name}'; "
                    f"rename '{name.partition('.')[0]}' in the model"
                )
        module = StageModule({name: self._traced.attribute(name) for name in names}, self._graph, "Stage")
        module.training = self._traced.model.training
        if not self._traced.has_both_modes:
            module.meta["only_mode"] = module.training
        self._forget_constants(module)
        return module

    def _take(self, node: fx.Node) -> fx.Node:
        """Return the node's counterpart here, copying attributes and numbers when they are first needed."""
        if node not in self._here:
            assert node not in self._traced.layer_of, f"{node} must enter the stage"
            self._here[node] = self._graph.node_copy(node, self._take)
        return self._here[node]

    def _leave(self, crossing: Crossing) -> fx.Node:
        node = self._take(crossing.node)
        return self._graph.call_function(shape_of, (node,)) if crossing.is_shape else node

    def _overwritten(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the nodes among those that enter which `nodes` overwrite."""
        overwritten: dict[fx.Node, None] = {}
        for node in nodes:
            written = [target for target in node.meta.get(OVERWRITES, ()) if target in self._here]
            if len(written) > 1:
                raise MethodError(
                    "only one of several tensors that share memory may enter a stage that overwrites it, but "
                    f"{' and '.join(target.name for target in written)} enter before {node.name} does so; "
                    "cut elsewhere, or do not work in place there"
                )
            overwritten.update(dict.fromkeys(written))
        return list(overwritten)

    def _forget_constants(self, module: StageModule) -> None:
        """Save only those buffers that the model saves."""
        saved = self._traced.model.state_dict(keep_vars=True).keys()
        for name, _ in list(module.named_buffers()):
            owner, _, last = name.rpartition(".")
            if name not in saved:
                module.get_submodule(owner)._non_persistent_buffers_set.add(last)


def _adopt_the_rest(model: nn.Module, stages: Sequence[StageModule]) -> None:
    """Put what the model saves but no layer reads where the same tensor is, or into the last stage."""
    own = [stage.state_dict(keep_vars=True) for stage in stages]
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and not any(name in state for state in own):
            holders = (at for at, state in enumerate(own) if any(value is tensor for tensor in state.values()))
            _adopt(stages[next(holders, -1)], name, value)


def _adopt(stage: nn.Module, name: str, value: Tensor) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(stage, part):
            stage.add_module(part, nn.Module())
        stage = getattr(stage, part)
    if isinstance(value, nn.Parameter):
        stage.register_parameter(last, value)
    else:
        stage.register_buffer(last, value)


def shape_of(tensor: Tensor) -> Tensor:
    """Return a tensor without elements: the shape of the other, with a dimension of 0 appended."""
    return tensor.new_empty((*tensor.shape, 0), dtype=torch.int8)


def of_shape(shape: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor of the shape that `shape_of` kept; all its elements share one."""
    return torch.empty((), dtype=dtype, device=shape.device).expand(shape.shape[:-1])


def _entering(traced: TracedModel, start: int) -> list[Crossing]:
    """Return what is made before layer `start` and read by it or a later one; the first stage takes all inputs."""
    if start == 0:
        return [Crossing(node=node) for node in traced.inputs]
    values, shapes = traced.readers(), traced.readers(of_shapes=True)
    made = [node for node in traced.graph.nodes if traced.layer_of.get(node, start) < start]
    crossings = []
    for node in (*traced.inputs, *made):
        if max(values.get(node, {-1})) >= start:
            crossings.append(Crossing(node=node))
        elif max(shapes.get(node, {-1})) >= start:
            crossings.append(Crossing(node=node, is_shape=True))
    return crossings


def _numbers(traced: TracedModel, boundaries: Sequence[int | str]) -> list[int]:
    """Return the boundaries as layer numbers, checked."""
    count = len(traced)
    if len(boundaries) >= count:
        hint = "; ".join(f"module '{path}' is one layer, since {reason}" for path, reason in traced.whole.items())
        raise MethodError(
            f"there must be no more stages than layers, but there are {len(boundaries) + 1} stages for {count} layers "
            f"({', '.join(traced.names[:8])}{', ...' if count > 8 else ''}); give fewer boundaries"
            f"{f'; {hint}' if hint else ''}"
        )
    numbers = [_number(traced, boundary) for boundary in boundaries]
    for before, after in pairwise([0, *numbers]):
        if after <= before:
            raise MethodError(
                f"every stage must have a layer, but none is left between boundaries {before} and {after} of "
                f"{list(boundaries)}; give increasing numbers from 1 to {count - 1}"
            )
    return numbers


def _number(traced: TracedModel, boundary: int | str) -> int:
    count = len(traced)
    if isinstance(boundary, str):
        for number, name in enumerate(traced.names):
            if name == boundary or name.startswith(f"{boundary}."):
                return number
        raise MethodError(
            f"a boundary must be the name of a layer, but '{boundary}' is not among "
            f"{', '.join(traced.names[:8])}{', ...' if count > 8 else ''}; trace(model, inputs).names lists all"
        )
    if not 0 < boundary < count:
        raise MethodError(
            f"a boundary must be the number of a layer after the first, but got {boundary} of {count} layers; "
            f"try 1 to {count - 1}"
        )
    return boundary
