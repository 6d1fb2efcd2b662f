"""By how much we are wrong: published runs, rehearsed and held against what was measured."""

from sandtable.validation.captures import cache_directory
from sandtable.validation.page import fill_page
from sandtable.validation.rows import Row, RowSet, load_set, load_sets
from sandtable.validation.run import Choice, Report, validate
from sandtable.validation.scatter import scatter_svg
from sandtable.validation.scores import Outcome, Score
from sandtable.validation.show import print_report

__all__ = [
    "Choice",
    "Outcome",
    "Report",
    "Row",
    "RowSet",
    "Score",
    "cache_directory",
    "fill_page",
    "load_set",
    "load_sets",
    "print_report",
    "scatter_svg",
    "validate",
]
