"""Splitting: carry out a plan on a model.

Each module that has a style is replaced in its parent. Tied parameters (of an embedding and its head) stay tied.
Parameters that stay whole but see only a share of the work (some heads, some tokens) get their gradients summed.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.channels import sees_a_share
from sandtable.methods.tensor.convolution import is_convolution
from sandtable.methods.tensor.dropout import Randomness
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.layout import ShardLayout
from sandtable.methods.tensor.linear import RowParallelLinear, is_linear_layer
from sandtable.methods.tensor.plan import TensorPlan
from sandtable.methods.tensor.region import Region
from sandtable.methods.tensor.sequence import share_tokens, sum_gradients
from sandtable.methods.tensor.styles import HeadSplit, SplitTarget

__all__ = ["split_model"]


def split_model(
    model: nn.Module, plan: TensorPlan, group: TensorGroup, *, sequence_dim: int | None
) -> dict[str, ShardLayout]:
    """Split it in place, tokens along `sequence_dim` unless None; return the layouts of what was split, by name."""
    styles = plan.choose(model)
    token_split = [] if sequence_dim is None else plan.modules_of_sequence(model)
    if sequence_dim is not None and not token_split:
        raise MethodError(
            f"sequence parallelism must find the modules between which to split the tokens, but {plan.sequence} match "
            f"none of {type(model).__name__}; name them in TensorPlan(..., sequence=...), or use "
            "sequence_parallel=False"
        )
    heads = [name for name, style in styles.items() if isinstance(style, HeadSplit)]
    places = _Places(group, token_split, sequence_dim, heads)
    slices = _Slices()
    replacements: dict[nn.Module, nn.Module] = {}
    for name, style in styles.items():
        module = model.get_submodule(name)
        if module not in replacements:  # a module may have several names
            replacement = style.split(places.target(name, module))
            replacement.train(module.training)
            if replacement is not module:
                slices.note(name, module, replacement)
            replacements[module] = replacements[replacement] = replacement
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replacements[module])
    slices.tie(model)
    sum_gradients(_see_a_share(model, slices, token_split, heads), group)
    if token_split:
        share_tokens([model.get_submodule(name) for name in token_split], places.among_shares)
    return slices.layouts_by_name(model)


class _Places:
    """Finds, for each module, the region that it borders, and its gate."""

    def __init__(self, group: TensorGroup, token_split: list[str], sequence_dim: int | None, heads: list[str]) -> None:
        randomness = Randomness(group)
        self.among_shares = Region(group, randomness, sequence_dim=sequence_dim)
        self._among_all_tokens = Region(group, randomness)
        self._token_split = token_split
        self._heads = heads

    def target(self, name: str, module: nn.Module) -> SplitTarget:
        region = self.among_shares if _is_under(name, self._token_split) else self._among_all_tokens
        is_in_already = _is_under(name.rpartition(".")[0], self._heads)
        return SplitTarget(name=name, module=module, region=region, enter=_stay if is_in_already else region.enter)


class _Slices:
    """Records which parameter replaced which, and how it was split."""

    def __init__(self) -> None:
        self.layouts: dict[Tensor, ShardLayout] = {}
        self._slice_of: dict[Tensor, Tensor] = {}
        self._whole_of: dict[Tensor, Tensor] = {}

    def note(self, name: str, module: nn.Module, replacement: nn.Module) -> None:
        for prefix, part in replacement.named_modules():
            for key, layout in getattr(part, "layouts", {}).items():
                share = getattr(part, key)
                if share is not None:
                    self._note(name, getattr(module.get_submodule(prefix), key), share, layout)

    def _note(self, name: str, whole: Tensor, share: Tensor, layout: ShardLayout) -> None:
        first = self._slice_of.setdefault(whole, share)
        self._whole_of[share] = whole
        if self.layouts.setdefault(first, layout) != layout:
            raise MethodError(
                f"layers that share a parameter must split it the same way, but {name} splits it along {layout} and "
                f"another along {self.layouts[first]}; give both the same style, or leave both whole"
            )

    def tie(self, model: nn.Module) -> None:
        """Put the one slice wherever the whole parameter, or another slice of it, is still in use."""
        for name, module in model.named_modules():
            for key, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if parameter in self._slice_of:
                    _check_only_holds(module, f"{name}.{key}")
                one = self._slice_of.get(self._whole_of.get(parameter, parameter))
                if isinstance(one, nn.Parameter) and one is not parameter:
                    module.register_parameter(key, one)

    def layouts_by_name(self, model: nn.Module) -> dict[str, ShardLayout]:
        named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        return {name: self.layouts[tensor] for name, tensor in named if tensor in self.layouts}


def _see_a_share(
    model: nn.Module, slices: _Slices, token_split: list[str], heads: list[str]
) -> Iterable[tuple[nn.Module, str]]:
    """Return parameters, by module and name, that are whole on every rank but see only some of the tokens or heads."""
    seen: dict[nn.Parameter, set[bool]] = {}
    places: dict[tuple[nn.Module, str], nn.Parameter] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        # A row-parallel layer adds its bias after the sum over the heads, so the bias belongs outside.
        is_inside = _is_under(name, token_split) or (
            (_is_under(name, heads) and not isinstance(module, RowParallelLinear)) or sees_a_share(module)
        )
        for key, parameter in module.named_parameters(recurse=False):
            if parameter not in slices.layouts:
                places[module, key] = parameter
                seen.setdefault(parameter, set()).add(is_inside)
                if len(seen[parameter]) > 1:
                    raise MethodError(
                        f"a parameter that stays whole must not be used both inside and outside split work, but "
                        f"{name}.{key} is; make it two parameters"
                    )
    return [place for place, parameter in places.items() if seen[parameter] == {True}]


def _check_only_holds(module: nn.Module, name: str) -> None:
    """Raise `MethodError` if the module is a layer: left whole, it would compute with the slice."""
    if is_linear_layer(module) or is_convolution(module) or isinstance(module, nn.Embedding):
        raise MethodError(
            f"layers that share a parameter must split it the same way, but {name} is left whole and another layer "
            "splits it; give both the same style, or leave both whole"
        )


def _is_under(name: str, roots: list[str]) -> bool:
    """Return whether the module of this name is one of `roots` or inside one."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _stay(tensor: Tensor) -> Tensor:
    return tensor
