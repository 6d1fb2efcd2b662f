"""Units: text that a person reads must name the right size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandtable import units
from sandtable.units import GIB, KIB, MIB, format_bytes, format_count, format_flops, format_seconds


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (3 * GIB // 2, "1.50 GiB"),
        (MIB - 1, "1.00 MiB"),
        (-2 * MIB, "-2.00 MiB"),
        (85_097_971_712, "79.25 GiB"),
    ],
)
def test_bytes_are_shown_in_binary_units(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("num_flops", "text"),
    [(0, "0.00 FLOP"), (312e12, "312.00 TFLOP"), (999_999, "1.00 MFLOP"), (4.51e23, "451.00 ZFLOP")],
)
def test_flops_are_shown_in_decimal_units(num_flops: float, text: str) -> None:
    assert format_flops(num_flops) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (850e-9, "850 ns"),
        (12.3e-6, "12.30 us"),
        (4.56e-3, "4.56 ms"),
        (59.99, "59.99 s"),
        (59.999, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3600, "1 h 00 min"),
        (11_220, "3 h 07 min"),
        (-0.5, "-500.00 ms"),
    ],
)
def test_durations_read_as_a_person_says_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(12_288, "12,288"), (1_500_000, "1.50 M"), (175 * 10**9, "175.00 B")])
def test_counts_keep_separators_until_a_million(count: int, text: str) -> None:
    assert format_count(count) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_shown_bytes_are_within_half_a_percent_and_below_the_next_unit(num_bytes: int) -> None:
    number, suffix = format_bytes(num_bytes).split(" ")
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}[suffix]
    assert abs(float(number) * scale - num_bytes) <= 0.005 * max(num_bytes, 1)
    assert float(number) < 1024


@given(st.floats(min_value=0, max_value=1e7))
def test_seconds_never_show_sixty_of_a_smaller_unit(seconds: float) -> None:
    text = format_seconds(seconds)
    assert re.search(r"(^| )60 (s|min)$", text) is None
    assert not text.startswith(("1000.00", "60 min"))


def test_everything_public_is_listed_in_order() -> None:
    assert units.__all__ == sorted(units.__all__)
    assert all(hasattr(units, name) for name in units.__all__)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("10Gbit", 1.25e9), ("25 Gbit/s", 3.125e9), ("1.2GB/s", 1.2e9), ("100Mbit", 12.5e6), ("1GiB", GIB)],
)
def test_rates_are_read_as_people_write_them(text: str, bytes_per_s: float) -> None:
    assert units.parse_rate(text) == bytes_per_s


def test_sizes_are_read_as_people_write_them() -> None:
    assert units.parse_bytes("16GiB") == 16 * GIB
    assert units.parse_bytes("1.5 GB") == 1_500_000_000


@pytest.mark.parametrize("text", ["10", "Gbit", "10Gb", "-1Gbit", "1e3Gbit", "", "10 Gbit fast"])
def test_what_might_mean_two_things_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match=rf"must be a number and one of bit, .* but got '{text}'; for example 10Gbit"):
        units.parse_rate(text)
