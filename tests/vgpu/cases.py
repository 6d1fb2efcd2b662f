"""Operators as scripts use them, one function per case.

Each takes `make`, which gives a leaf tensor of a shape (`make.floats`, `make.integers`, `make.flags`), so that one case
runs on the host, on the virtual GPU with values it knows, and there with values it does not.
"""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="arg-type,call-overload,misc"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Maker:
    """Makes a case's inputs on a device, the same numbers each time; unknown ones are cut from a storage too large to
    have values."""

    def __init__(self, device: str, *, is_known: bool = True) -> None:
        self.device = device
        self.leaves: list[torch.Tensor] = []
        self._is_known = is_known
        self._random = torch.Generator().manual_seed(1)

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
        made = self._place((torch.rand(shape, generator=self._random) + 0.1).to(dtype))
        if grad and made.is_floating_point():
            self.leaves.append(made.requires_grad_())
        return made

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=self._random).to(self.device)

    def flags(self, *shape: int) -> torch.Tensor:
        return (torch.rand(shape, generator=self._random) > 0.5).to(self.device)

    def module(self, module: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=self._random) - 0.5)
        module = module.to(self.device)
        self.leaves.extend(module.parameters())
        return module

    def _place(self, host: torch.Tensor) -> torch.Tensor:
        if self._is_known or self.device == "cpu":
            return host.to(self.device)
        whole = torch.zeros(host.numel() + (1 << 14), dtype=host.dtype, device=self.device)
        return whole[: host.numel()].view(host.shape).detach()


Case = Callable[[Maker], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def add(name: str, function: Case) -> None:
    CASES[name] = function


# ---- pointwise, reductions, shapes ----

for _name in [
    "relu",
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "softplus",
    "elu",
    "leaky_relu",
    "hardtanh",
    "hardswish",
    "mish",
    "logsigmoid",
    "selu",
    "celu",
    "softsign",
    "hardsigmoid",
    "relu6",
    "tanhshrink",
]:
    add(_name, lambda make, name=_name: getattr(F, name)(make.floats(3, 4)))
for _name in [
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "abs",
    "neg",
    "reciprocal",
    "erf",
    "floor",
    "round",
    "sign",
    "log1p",
    "expm1",
    "square",
    "trunc",
    "frac",
]:
    add(_name, lambda make, name=_name: getattr(torch, name)(make.floats(3, 4)))
for _name in ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "atan2", "fmod", "remainder"]:
    add(_name, lambda make, name=_name: getattr(torch, name)(make.floats(3, 4), make.floats(4)))
for _name in ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"]:
    add(_name, lambda make, name=_name: getattr(torch, name)(make.floats(3, 4), make.floats(3, 1)))
for _name in [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "logsumexp",
    "std",
    "var",
    "norm",
    "cumsum",
    "cumprod",
    "argmax",
    "argmin",
    "softmax",
    "log_softmax",
]:
    add(f"{_name}_dim", lambda make, name=_name: getattr(torch, name)(make.floats(3, 4), dim=1))
for _name in ["sum", "mean", "prod", "max", "min", "std", "var", "norm", "median", "any", "all", "argmax"]:
    add(f"{_name}_all", lambda make, name=_name: getattr(torch, name)(make.floats(3, 4)))

add("max_dim", lambda make: tuple(torch.max(make.floats(3, 4), dim=1)))
add("aminmax", lambda make: tuple(torch.aminmax(make.floats(3, 4))))
add("var_mean", lambda make: torch.var_mean(make.floats(3, 4), dim=0, keepdim=True))
add("where", lambda make: torch.where(make.flags(3, 4), make.floats(3, 4), make.floats(3, 4)))
add("where_scalar", lambda make: torch.where(make.flags(3, 4), make.floats(3, 4), 0.0))
add("clamp", lambda make: make.floats(3, 4).clamp(0.2, 0.8))
add("lerp", lambda make: torch.lerp(make.floats(4), make.floats(4), 0.3))
add("addcmul", lambda make: torch.addcmul(make.floats(4), make.floats(4), make.floats(4), value=0.5))
add("cat", lambda make: torch.cat([make.floats(2, 3), make.floats(4, 3)]))
add("stack", lambda make: torch.stack([make.floats(2, 3), make.floats(2, 3)], dim=1))
add("chunk", lambda make: make.floats(6, 2).chunk(3))
add("split", lambda make: make.floats(6, 2).split([1, 2, 3]))
add("unbind", lambda make: make.floats(3, 2).unbind(0))
add("tensor_split", lambda make: torch.tensor_split(make.floats(7), 3))
add("permute", lambda make: make.floats(2, 3, 4).permute(2, 0, 1).contiguous())
add("flip", lambda make: make.floats(2, 3).flip(0))
add("roll", lambda make: make.floats(2, 3).roll(1, 1))
add("repeat", lambda make: make.floats(2, 3).repeat(2, 2))
add("repeat_interleave", lambda make: make.floats(2, 3).repeat_interleave(2, dim=0))
add("expand", lambda make: make.floats(2, 1).expand(2, 5) * 2)
add("tril", lambda make: make.floats(4, 4).tril(-1))
add("triu", lambda make: make.floats(4, 4).triu())
add("diag", lambda make: make.floats(4).diag())
add("diagonal", lambda make: make.floats(4, 4).diagonal())
add("unfold", lambda make: make.floats(8).unfold(0, 3, 2))
add("as_strided", lambda make: make.floats(4, 4).as_strided((2, 2), (4, 1), 1) * 1)
add("pad_constant", lambda make: F.pad(make.floats(2, 3), (1, 2), value=3.0))
add("pad_reflect", lambda make: F.pad(make.floats(1, 2, 5), (1, 2), mode="reflect"))
add("pad_replicate", lambda make: F.pad(make.floats(1, 2, 5), (1, 2), mode="replicate"))
add("pad_circular", lambda make: F.pad(make.floats(1, 2, 5), (1, 2), mode="circular"))
add("meshgrid", lambda make: torch.meshgrid(make.floats(3), make.floats(2), indexing="ij"))
add("einsum", lambda make: torch.einsum("bij,bjk->bik", make.floats(2, 3, 4), make.floats(2, 4, 5)))
add("einsum_outer", lambda make: torch.einsum("i,j->ij", make.floats(3), make.floats(4)))
add("cdist", lambda make: torch.cdist(make.floats(3, 2), make.floats(4, 2)))
add("trapezoid", lambda make: torch.trapezoid(make.floats(5)))
add("bincount", lambda make: torch.bincount(make.integers(4, 10), minlength=6))
add("histc", lambda make: torch.histc(make.floats(10, grad=False), bins=4, min=0, max=2))
add("one_hot", lambda make: F.one_hot(make.integers(4, 6), num_classes=5))

# ---- indexing, sorting ----

add("index_integer", lambda make: make.floats(5, 3)[2])
add("index_slice", lambda make: make.floats(5, 3)[1:4, ::2])
add("index_tensor", lambda make: make.floats(5, 3)[make.integers(5, 4)])
add("index_two", lambda make: make.floats(5, 3)[make.integers(5, 4), make.integers(3, 4)])
add("index_select", lambda make: make.floats(5, 3).index_select(0, make.integers(5, 4)))
add("index_add", lambda make: torch.index_add(make.floats(5, 3), 0, make.integers(5, 4), make.floats(4, 3)))
add("index_copy", lambda make: make.floats(5, 3).index_copy(0, make.integers(5, 1), make.floats(1, 3)))
add("index_fill", lambda make: make.floats(5, 3).index_fill(0, make.integers(5, 2), 0.0))
add("take", lambda make: make.floats(5, 3).take(make.integers(15, 4)))
add("take_along_dim", lambda make: torch.take_along_dim(make.floats(5, 3), make.integers(3, 5, 2), dim=1))
add("gather", lambda make: make.floats(5, 3).gather(1, make.integers(3, 5, 2)))
add("scatter", lambda make: make.floats(5, 3).scatter(1, make.integers(3, 5, 1), make.floats(5, 1)))
add("scatter_add", lambda make: make.floats(5, 3).scatter_add(1, make.integers(3, 5, 1), make.floats(5, 1)))
add("scatter_reduce", lambda make: make.floats(5).scatter_reduce(0, make.integers(5, 7), make.floats(7), "amax"))
add("masked_fill", lambda make: make.floats(3, 4).masked_fill(make.flags(3, 4), -1.0))
add("topk", lambda make: tuple(make.floats(3, 6).topk(2)))
add("sort", lambda make: tuple(make.floats(3, 6).sort(descending=True)))
add("argsort", lambda make: make.floats(3, 6).argsort())
add("kthvalue", lambda make: tuple(make.floats(3, 6).kthvalue(2)))
add(
    "searchsorted",
    lambda make: torch.searchsorted(make.floats(6, grad=False).sort().values, make.floats(3, grad=False)),
)
add("bucketize", lambda make: torch.bucketize(make.floats(3, grad=False), make.floats(6, grad=False).sort().values))
add("quantile", lambda make: make.floats(7).quantile(0.5))

# ---- matrices ----

for _name, _shapes in {
    "mm": ((3, 4), (4, 5)),
    "bmm": ((2, 3, 4), (2, 4, 5)),
    "matmul": ((2, 1, 3, 4), (5, 4, 2)),
    "mv": ((3, 4), (4,)),
    "dot": ((4,), (4,)),
    "outer": ((3,), (4,)),
    "addmm": ((5,), (3, 4), (4, 5)),
    "baddbmm": ((2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addr": ((3, 4), (3,), (4,)),
    "kron": ((2, 2), (2, 3)),
}.items():
    add(_name, lambda make, name=_name, shapes=_shapes: getattr(torch, name)(*(make.floats(*s) for s in shapes)))
add("chain_matmul", lambda make: torch.linalg.multi_dot([make.floats(2, 3), make.floats(3, 4), make.floats(4, 2)]))


def _positive(make: Maker) -> torch.Tensor:
    x = make.floats(4, 4)
    return x @ x.mT + 4 * torch.eye(4, device=make.device)


add("cholesky", lambda make: torch.linalg.cholesky(_positive(make)))
add("solve", lambda make: torch.linalg.solve(_positive(make), make.floats(4, 2)))
add("inv", lambda make: torch.linalg.inv(_positive(make)))
add("det", lambda make: torch.linalg.det(_positive(make)))
add("slogdet", lambda make: tuple(torch.linalg.slogdet(_positive(make))))
add("svd", lambda make: torch.linalg.svd(_positive(make), full_matrices=False).S)
add("svdvals", lambda make: torch.linalg.svdvals(_positive(make)))
add("qr", lambda make: torch.linalg.qr(_positive(make)).R.abs())
add("eigh", lambda make: torch.linalg.eigh(_positive(make)).eigenvalues)
add("lstsq", lambda make: torch.linalg.lstsq(_positive(make), make.floats(4, 2)).solution)
add("triangular", lambda make: torch.linalg.solve_triangular(_positive(make).tril(), make.floats(4, 2), upper=False))
add("matrix_norm", lambda make: torch.linalg.matrix_norm(make.floats(3, 4)))
add("vector_norm", lambda make: torch.linalg.vector_norm(make.floats(3, 4), 3))
add("matrix_exp", lambda make: torch.linalg.matrix_exp(make.floats(3, 3)))
add("pinv", lambda make: torch.linalg.pinv(_positive(make)))

# ---- complex numbers and Fourier transforms ----

add("fft", lambda make: torch.fft.fft(make.floats(4, 8)).abs())
add("rfft", lambda make: torch.fft.irfft(torch.fft.rfft(make.floats(4, 8))))
add("fft2", lambda make: torch.fft.ifft2(torch.fft.fft2(make.floats(4, 8))).real)
add("fftshift", lambda make: torch.fft.fftshift(make.floats(4, 8)))
add(
    "stft",
    lambda make: torch.stft(make.floats(64), 16, window=torch.ones(16, device=make.device), return_complex=True).abs(),
)
add("polar", lambda make: torch.view_as_real(torch.polar(make.floats(4), make.floats(4))))
add(
    "rotary",
    lambda make: torch.view_as_real(
        torch.view_as_complex(make.floats(4, 2)) * torch.polar(torch.ones(4), torch.ones(4)).to(make.device)
    ),
)

# ---- layers ----

add("linear", lambda make: make.module(nn.Linear(4, 3))(make.floats(2, 4)))
add("bilinear", lambda make: make.module(nn.Bilinear(2, 3, 4))(make.floats(5, 2), make.floats(5, 3)))
for _d in (1, 2, 3):
    _shape = (2, 4, *([6 if _d < 3 else 4] * _d))
    for _name, _options in {
        "conv": {"padding": 1},
        "conv_strided": {"stride": 2, "bias": False},
        "conv_dilated": {"dilation": 2, "padding": "same"},
        "conv_grouped": {"groups": 2},
    }.items():
        add(
            f"{_name}{_d}d",
            lambda make, d=_d, shape=_shape, options=_options: make.module(
                getattr(nn, f"Conv{d}d")(4, 6, 3, **options)
            )(make.floats(*shape)),
        )
    add(
        f"conv_transpose{_d}d",
        lambda make, d=_d, shape=_shape: make.module(
            getattr(nn, f"ConvTranspose{d}d")(4, 6, 3, stride=2, output_padding=1)
        )(make.floats(*shape)),
    )
    for _name in ("MaxPool", "AvgPool"):
        add(
            f"{_name}{_d}d",
            lambda make, d=_d, shape=_shape, name=_name: getattr(nn, f"{name}{d}d")(2)(make.floats(*shape)),
        )
    for _name in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
        add(
            f"{_name}{_d}d",
            lambda make, d=_d, shape=_shape, name=_name: getattr(nn, f"{name}{d}d")(2)(make.floats(*shape)),
        )
    for _name in ("BatchNorm", "InstanceNorm"):
        add(
            f"{_name}{_d}d",
            lambda make, d=_d, shape=_shape, name=_name: make.module(getattr(nn, f"{name}{d}d")(4, affine=True))(
                make.floats(*shape)
            ),
        )
add("batch_norm_eval", lambda make: make.module(nn.BatchNorm2d(4)).eval()(make.floats(2, 4, 3, 3)))
add("layer_norm", lambda make: make.module(nn.LayerNorm(4))(make.floats(2, 3, 4)))
add("layer_norm_plain", lambda make: F.layer_norm(make.floats(2, 3, 4), (3, 4)))
add("group_norm", lambda make: make.module(nn.GroupNorm(2, 4))(make.floats(2, 4, 3, 3)))
add("rms_norm", lambda make: make.module(nn.RMSNorm(4))(make.floats(2, 3, 4)))
add("local_response_norm", lambda make: F.local_response_norm(make.floats(2, 4, 3, 3), 2))
add("prelu", lambda make: make.module(nn.PReLU())(make.floats(3, 4)))
add("glu", lambda make: F.glu(make.floats(3, 4)))
add("pixel_shuffle", lambda make: F.pixel_shuffle(make.floats(1, 4, 2, 2), 2))
add(
    "channels_last",
    lambda make: make.module(nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last))(
        make.floats(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    ),
)
add("max_unpool", lambda make: F.max_unpool2d(*F.max_pool2d(make.floats(1, 2, 4, 4), 2, return_indices=True), 2))
add("fold", lambda make: F.fold(F.unfold(make.floats(1, 2, 4, 4), 2, stride=2), (4, 4), 2, stride=2))
add("grid_sample", lambda make: F.grid_sample(make.floats(1, 2, 4, 4), make.floats(1, 3, 3, 2), align_corners=False))
add("affine_grid", lambda make: F.affine_grid(make.floats(1, 2, 3), [1, 2, 4, 4], align_corners=False))
for _mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
    add(
        f"interpolate_{_mode}",
        lambda make, mode=_mode: F.interpolate(make.floats(1, 2, 4, 4), scale_factor=2, mode=mode),
    )
add("interpolate_1d", lambda make: F.interpolate(make.floats(1, 2, 4), size=7, mode="linear"))
add("interpolate_3d", lambda make: F.interpolate(make.floats(1, 2, 2, 2, 2), size=(3, 3, 3), mode="trilinear"))
add("embedding", lambda make: make.module(nn.Embedding(10, 4, padding_idx=0))(make.integers(10, 2, 3)))
add(
    "embedding_max_norm",
    lambda make: F.embedding(make.integers(10, 2, 3), make.floats(10, 4, grad=False), max_norm=1.0),
)
for _mode in ("sum", "mean", "max"):
    add(
        f"embedding_bag_{_mode}",
        lambda make, mode=_mode: make.module(nn.EmbeddingBag(10, 4, mode=mode))(make.integers(10, 2, 3)),
    )
add(
    "embedding_bag_offsets",
    lambda make: make.module(nn.EmbeddingBag(10, 4))(make.integers(10, 6), torch.tensor([0, 2, 4], device=make.device)),
)
for _name in ("RNN", "GRU", "LSTM"):
    add(
        _name,
        lambda make, name=_name: make.module(getattr(nn, name)(4, 3, num_layers=2, batch_first=True))(
            make.floats(2, 5, 4)
        )[0],
    )
    add(
        f"{_name}_bidirectional",
        lambda make, name=_name: make.module(getattr(nn, name)(4, 3, bidirectional=True))(make.floats(5, 2, 4))[0],
    )
    add(f"{_name}_cell", lambda make, name=_name: make.module(getattr(nn, f"{name}Cell")(4, 3))(make.floats(2, 4)))


@case
def packed_lstm(make: Maker) -> Any:
    packed = nn.utils.rnn.pack_padded_sequence(
        make.floats(2, 5, 4), torch.tensor([5, 3]), batch_first=True, enforce_sorted=False
    )
    out, _ = make.module(nn.LSTM(4, 3, batch_first=True))(packed)
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]


add("pad_sequence", lambda make: nn.utils.rnn.pad_sequence([make.floats(3, 2), make.floats(5, 2)], batch_first=True))

# ---- attention ----

add("sdpa", lambda make: F.scaled_dot_product_attention(*(make.floats(2, 2, 5, 8) for _ in range(3)), is_causal=True))
add(
    "sdpa_mask",
    lambda make: F.scaled_dot_product_attention(
        *(make.floats(2, 2, 5, 8) for _ in range(3)), attn_mask=make.floats(5, 5, grad=False)
    ),
)
add(
    "sdpa_grouped",
    lambda make: F.scaled_dot_product_attention(
        make.floats(2, 4, 5, 8), make.floats(2, 2, 5, 8), make.floats(2, 2, 5, 8), enable_gqa=True
    ),
)
add(
    "multi_head_attention",
    lambda make: make.module(nn.MultiheadAttention(8, 2, batch_first=True))(x := make.floats(2, 5, 8), x, x)[0],
)
add(
    "transformer_layer",
    lambda make: make.module(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))(make.floats(2, 5, 8)),
)
add(
    "transformer_encoder_eval",
    lambda make: make.module(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)).eval()(
        make.floats(2, 5, 8)
    ),
)
add(
    "transformer",
    lambda make: make.module(nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True))(
        make.floats(2, 5, 8), make.floats(2, 3, 8)
    ),
)

# ---- losses ----

add("cross_entropy", lambda make: F.cross_entropy(make.floats(6, 5), make.integers(5, 6), label_smoothing=0.1))
add(
    "cross_entropy_ignore",
    lambda make: F.cross_entropy(make.floats(6, 5), make.integers(5, 6), ignore_index=2, reduction="sum"),
)
add("cross_entropy_soft", lambda make: F.cross_entropy(make.floats(6, 5), make.floats(6, 5)))
add("nll_loss_2d", lambda make: F.nll_loss(make.floats(2, 5, 3, 3).log_softmax(1), make.integers(5, 2, 3, 3)))
add("mse", lambda make: F.mse_loss(make.floats(6), make.floats(6)))
add("l1", lambda make: F.l1_loss(make.floats(6), make.floats(6)))
add("smooth_l1", lambda make: F.smooth_l1_loss(make.floats(6), make.floats(6)))
add("huber", lambda make: F.huber_loss(make.floats(6), make.floats(6)))
add("bce_logits", lambda make: F.binary_cross_entropy_with_logits(make.floats(6), make.floats(6)))
add("bce", lambda make: F.binary_cross_entropy(make.floats(6).sigmoid(), make.floats(6, grad=False).sigmoid()))
add("kl_div", lambda make: F.kl_div(make.floats(6).log(), make.floats(6), reduction="batchmean"))
add("cosine", lambda make: F.cosine_similarity(make.floats(3, 4), make.floats(3, 4)))
add("triplet", lambda make: F.triplet_margin_loss(make.floats(3, 4), make.floats(3, 4), make.floats(3, 4)))
add(
    "margin_ranking",
    lambda make: F.margin_ranking_loss(make.floats(4), make.floats(4), torch.ones(4, device=make.device)),
)
add(
    "ctc",
    lambda make: F.ctc_loss(
        make.floats(8, 2, 5).log_softmax(-1), make.integers(4, 2, 3) + 1, torch.tensor([8, 8]), torch.tensor([3, 2])
    ),
)
add("gaussian_nll", lambda make: F.gaussian_nll_loss(make.floats(4), make.floats(4), make.floats(4)))
