"""WHAT TO SHOW: a run's figures, drawn for people."""

from sandtable.report.terminal import print_summary

__all__ = ["print_summary"]
