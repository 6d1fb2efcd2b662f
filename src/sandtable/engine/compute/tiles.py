"""Tiles: how long a matrix product takes when its output is cut into tiles and dealt to the multiprocessors.

Picture a floor laid by as many workers as there are multiprocessors, each laying one tile at a time. All tiles are
equal, so the floor takes `waves` = ceil(tiles / workers) turns: a last turn in which only a few have work costs as
much as a full one. A tile at the border is laid whole and cut. Fetching the first material and clearing up takes a
worker the same time however thick the tile is (k), so thin tiles pay more. Where there are fewer tiles than workers,
several may share one by splitting k, and add up their parts afterwards. Libraries hold kernels for several tile sizes
and pick one that suits: the best of a few here.

    waves = ceil(batch · ceil(m / tile_m) · ceil(n / tile_n) · splits / num_sms)
    time  = waves · (2 · tile_m · tile_n · k / splits / (rate / num_sms · quality) + tile_ns)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

__all__ = ["Product", "TileThroughput", "grouped_ns", "tiled_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`batch` products of an (m, k) and a (k, n) matrix."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class TileThroughput:
    """The device's rates: `rate` is what all `num_sms` reach together in the inner loop of the best tile.

    `small_tile_loss` is how much of Ampere's loss with small tiles the device has: 1 for all of it, 0 for none.
    """

    num_sms: int
    rate: float
    on_matrix_units: bool
    is_eight_bit: bool
    tile_ns: float
    small_tile_loss: float
    kernel_ns: float
    bytes_per_ns: float


_MATRIX_TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.95), (128, 64, 0.82), (64, 128, 0.82), (64, 64, 0.68))
_VECTOR_TILES = ((128, 128, 1.0), (128, 64, 0.95), (64, 128, 0.95), (64, 64, 0.87), (32, 32, 0.6))
"""Rows, columns, and the share of the best tile's speed: small tiles fetch more for each number they compute."""

_EIGHT_BIT_TILES = ((128, 128, 1.0),)
"""Products in float8 with a scale per row or tensor have one tile (CUTLASS), so their turns are not chosen to fit.

Two tiles, one below the other, form a cluster that shares its loads: above 128 rows, an odd number of them is one more.
"""

_GROUP_TILES = (
    *((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.75), (64, 256, 0.75)),
    *((64, 128, 0.63), (32, 128, 0.53), (16, 128, 0.45)),
)
"""Grouped products also have flat tiles, for groups of few rows; fitted to tables of experts on H100."""

_FEW_TURNS = 4

_SPLITS = (1, 2, 4, 8, 16, 32)
_MATRIX_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_K_STEP = 32


def tiled_ns(product: Product, throughput: TileThroughput) -> float:
    """Return the time of the best tile and split."""
    if not product.flops:
        return 0.0
    tiles = _tiles(throughput)
    all_splits = _MATRIX_SPLITS if throughput.on_matrix_units else _SPLITS
    return min(_one_ns(product, throughput, tile, splits) for tile in tiles for splits in all_splits)


def _tiles(throughput: TileThroughput) -> tuple[tuple[int, int, float], ...]:
    if throughput.is_eight_bit:
        return _EIGHT_BIT_TILES
    return _MATRIX_TILES if throughput.on_matrix_units else _VECTOR_TILES


def grouped_ns(products: Sequence[Product], throughput: TileThroughput) -> float:
    """Return the time of products in one launch, with the best tile for all of them.

    The tiles of all groups form one queue. Where each multiprocessor takes many of them, no turn is lost at the end.
    """
    groups = [product for product in products if product.flops]
    if not groups:
        return 0.0
    tiles = _GROUP_TILES if throughput.on_matrix_units else _VECTOR_TILES
    return min(_together_ns(groups, throughput, tile) for tile in tiles)


def _together_ns(groups: Sequence[Product], throughput: TileThroughput, tile: tuple[int, int, float]) -> float:
    rows, columns, quality = tile
    rate = throughput.rate * quality
    num_tiles, total_ns = 0, 0.0
    for group in groups:
        group_tiles = group.batch * ceil(group.m / rows) * ceil(group.n / columns)
        k = ceil(group.k / _K_STEP) * _K_STEP
        num_tiles += group_tiles
        total_ns += group_tiles * (2 * rows * columns * k * 1e9 * throughput.num_sms / rate + throughput.tile_ns)
    turns = num_tiles / throughput.num_sms
    return total_ns / num_tiles * (ceil(turns) if turns <= _FEW_TURNS else turns)


def _one_ns(product: Product, throughput: TileThroughput, tile: tuple[int, int, float], splits: int) -> float:
    rows, columns, quality = tile
    num_tiles = product.batch * _tile_rows(product.m, rows, throughput) * ceil(product.n / columns)
    waves = ceil(num_tiles * splits / throughput.num_sms)
    k = ceil(product.k / splits / _K_STEP) * _K_STEP
    rate = throughput.rate * float(quality**throughput.small_tile_loss)
    loop_ns = 2 * rows * columns * k * 1e9 * throughput.num_sms / rate
    return waves * (loop_ns + throughput.tile_ns) + _adding_up_ns(product, throughput, splits)


def _tile_rows(m: int, rows: int, throughput: TileThroughput) -> int:
    tile_rows = ceil(m / rows)
    return tile_rows + tile_rows % 2 if throughput.is_eight_bit and tile_rows > 1 else tile_rows


def _adding_up_ns(product: Product, throughput: TileThroughput, splits: int) -> float:
    """Return the time of a second kernel that reads the parts, kept as float32, which the first had to write.

    Matrix units are so fast that the second follows while half of the parts are in the cache.
    """
    if splits == 1:
        return 0.0
    part_bytes = 4 * product.batch * product.m * product.n
    passes = 1 if throughput.on_matrix_units else 2
    return throughput.kernel_ns + passes * splits * part_bytes / throughput.bytes_per_ns
