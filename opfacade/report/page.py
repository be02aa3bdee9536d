"""The page: one HTML file with its style and charts inside."""

from __future__ import annotations

import time

from opfacade import __version__
from opfacade.bench.table import problems
from opfacade.report import chart
from opfacade.report.join import ReportSources, joined


def html(sources: ReportSources, title: str = "opfacade report") -> str:
    """The report as HTML text. DescriptorError if a record is invalid."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("opfacade.report", "")
    pages = Environment(autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True)
    pages.filters |= {"known": _known, "noise": chart.noise}
    content = joined(sources)
    charts = [
        {
            "machine": record["machine"],
            "how": f"{record['timer']}; {record.get('how', '')}",
            "roofline": chart.roofline(record),
            "bars": chart.bars(record),
            "legend": chart.legend(record),
            "untimed": [row for rows in problems(record) for row in rows if "us" not in row],
        }
        for record in sources.bench
    ]
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    page = pages.get_template("page.html.jinja")
    return page.render(title=title, made=made, version=__version__, charts=charts, **content)


def _known(value: object, form: str = "{}") -> str:
    """A formatted value, or a dash if it is unknown."""
    return "-" if value is None else form.format(value)
