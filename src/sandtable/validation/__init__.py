"""HOW WRONG WE ARE: `validate()` rehearses published runs and compares the predictions with what was measured."""

from sandtable.validation.rows import PublishedRow, RowSet, load_set, load_sets
from sandtable.validation.run import (
    Choice,
    RowFailed,
    RowPredicted,
    RowStarted,
    cache_directory,
    save_report,
    validate,
)
from sandtable.validation.scatter import scatter_svg
from sandtable.validation.scores import RowOutcome, Score, ValidationReport
from sandtable.validation.tables import fill_page, print_report

__all__ = [
    "Choice",
    "PublishedRow",
    "RowFailed",
    "RowOutcome",
    "RowPredicted",
    "RowSet",
    "RowStarted",
    "Score",
    "ValidationReport",
    "cache_directory",
    "fill_page",
    "load_set",
    "load_sets",
    "print_report",
    "save_report",
    "scatter_svg",
    "validate",
]
