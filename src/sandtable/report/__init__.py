"""WHAT TO SHOW: a run's figures as plain data, drawn for people and written for tools."""

from sandtable.report.files import Report, write_comparison, write_report
from sandtable.report.outcome import print_outcome
from sandtable.report.summary import Asked, RunSummary, load_summary, summarise_run
from sandtable.report.terminal import print_summary

__all__ = [
    "Asked",
    "Report",
    "RunSummary",
    "load_summary",
    "print_outcome",
    "print_summary",
    "summarise_run",
    "write_comparison",
    "write_report",
]
