"""One static page with the measurements, tuning results, proofs and kernels of each SKU. It contains no script and loads
nothing from the network."""

from __future__ import annotations

from opfacade.report.join import ReportSources, joined
from opfacade.report.page import html

__all__ = ["ReportSources", "html", "joined"]
