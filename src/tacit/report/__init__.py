"""The report: runs and comparisons as one HTML page that needs nothing else. Reads released and public values."""

from __future__ import annotations

from tacit.report.page import page, write_report
from tacit.report.reading import Material, RunView, read_material, read_run

__all__ = ["Material", "RunView", "page", "read_material", "read_run", "write_report"]
