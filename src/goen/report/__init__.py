"""Tables, plots and a page for people, made from the files of a run alone."""

from goen.report.page import write_report

__all__ = ["write_report"]
