"""One static page from what was measured, tuned, proven and compiled, joined on the SKU. No script, no network."""

from __future__ import annotations

from opfacade.report.join import ReportSources, joined
from opfacade.report.page import html

__all__ = ["ReportSources", "html", "joined"]
