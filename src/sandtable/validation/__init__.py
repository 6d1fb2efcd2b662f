"""By how much we are wrong: published runs, rehearsed and held against what was measured."""

from sandtable.validation.rows import Row, RowSet, load_set, load_sets

__all__ = ["Row", "RowSet", "load_set", "load_sets"]
