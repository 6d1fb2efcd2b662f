"""WHAT TO SHOW: a run's figures as plain data, drawn for people and written for tools."""

from sandtable.report.figures import SimulationEffort, summarise
from sandtable.report.files import (
    Report,
    clear_run,
    files_in,
    require_writable,
    write_comparison,
    write_page,
    write_report,
)
from sandtable.report.findings import print_findings, print_verdict
from sandtable.report.outcome import print_failure, print_outcome
from sandtable.report.sarif import write_sarif
from sandtable.report.summary import Summary, Timing, UserInputs, load_summary, save_summary
from sandtable.report.terminal import print_summary

__all__ = [
    "Report",
    "SimulationEffort",
    "Summary",
    "Timing",
    "UserInputs",
    "clear_run",
    "files_in",
    "load_summary",
    "print_failure",
    "print_findings",
    "print_outcome",
    "print_summary",
    "print_verdict",
    "require_writable",
    "save_summary",
    "summarise",
    "write_comparison",
    "write_page",
    "write_report",
    "write_sarif",
]
