"""Operators of published programs, written down by hand for `bench/compute.py`."""
