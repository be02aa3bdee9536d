"""Draws a record of bench.rows or bench.maps: speed as a fraction of the copy rate, against the bytes of a problem."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import program_pages
from bench.operators import Record

Panels = Sequence[tuple[str, str]]  # a title, and a regular expression for the beginning of its problems' names
COLOURS = {"opfacade": "#0b6e4f", "torch eager": "#edae49", "torch.compile": "#30638e", "flashinfer": "#d1495b"}
OTHER = "#7d8491"


class Point(NamedTuple):
    """One time: bytes of the problem, bytes per second relative to the copy rate, the contender, and whether it ran in a graph
    (L2 is warm)."""

    bytes: int
    fraction: float
    who: str
    in_graph: bool


def points(record: Record, pattern: str) -> list[list[Point]]:
    """Our point, and the fastest peer's if one was timed, for each problem whose name begins with the pattern."""
    found = []
    for one in program_pages.timed(record, ("",)):
        if re.match(pattern, one.ours["problem"]):
            times = [(one.us, "opfacade"), *([one.peer] if one.peer else [])]
            size, copy_us = one.ours["bytes"], one.ours["bytes"] / record["ceilings"]["copy_TBs"] * 1e-6
            found.append([Point(size, copy_us / us, who, "graph_us" in one.ours) for us, who in times])
    return found


def picture(record: Record, panels: Panels, path: Path) -> None:
    """Writes the picture: a panel for each kind of problem that the record has."""
    from matplotlib.figure import Figure

    drawn = [(title, found) for title, pattern in panels if (found := points(record, pattern))]
    columns = min(len(drawn), 3 if len(drawn) > 4 else 2)
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows + 0.7), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    for axes, (title, found) in zip(grid, drawn, strict=False):
        _panel(axes, title, found)
    for axes in list(grid)[len(drawn) :]:
        axes.remove()
    _legend(figure, {point.who for _, found in drawn for pair in found for point in pair})
    machine = record["machine"]
    figure.suptitle(f"{machine['device']}  ·  {machine['date']}  ·  commit {machine['commit']}", fontsize=11)
    figure.savefig(path, dpi=80)


def _panel(axes: Any, title: str, found: list[list[Point]]) -> None:
    low, high = _limits([pair[0].bytes for pair in found])
    places = _apart([pair[0].bytes for pair in found], (high / low) ** 0.013)
    for place, pair in zip(places, found, strict=True):
        axes.plot([place] * len(pair), [point.fraction for point in pair], color="0.8", linewidth=1, zorder=1)
        for point in pair:
            above = 3 if point.who == "opfacade" else 2
            axes.plot(place, point.fraction, **_mark(point.who, point.in_graph), zorder=above)
    axes.axhline(1, color="0.4", linestyle="--", linewidth=1)
    axes.set(xscale="log", xlim=(low, high), ylim=(0, 1.12), xlabel="bytes read and written", ylabel="fraction of copying")
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _limits(sizes: list[int]) -> tuple[float, float]:
    """At least two decades, so that the axis has its powers of ten."""
    middle = (min(sizes) * max(sizes)) ** 0.5
    reach = max(10.0, 2 * max(sizes) / middle)
    return middle / reach, middle * reach


def _apart(sizes: list[int], step: float) -> list[float]:
    """Positions of problems on a logarithmic axis; problems with equal bytes are shifted by one step each."""
    places = []
    for i, size in enumerate(sizes):
        places.append(size * step ** (sizes[:i].count(size) - (sizes.count(size) - 1) / 2))
    return places


def _mark(who: str, in_graph: bool) -> dict[str, Any]:
    marker = "o" if who == "opfacade" else "^"
    return {
        "marker": marker, "markersize": 6, "linestyle": "none", "color": COLOURS.get(who, OTHER),
        "fillstyle": "none" if in_graph else "full",
    }  # fmt: skip


def _legend(figure: Any, names: set[str]) -> None:
    """Puts the legend below the panels, where it covers no data."""
    from matplotlib.lines import Line2D

    told = sorted(names, key=lambda name: (name != "opfacade", name))
    marks = [
        Line2D([], [], label=name if name == "opfacade" else f"{name}, where fastest", **_mark(name, False)) for name in told
    ]
    marks.append(Line2D([], [], label="hollow: one launch in a CUDA graph, L2 is warm", **_mark("opfacade", True)))
    marks.append(Line2D([], [], label="copying", color="0.4", linestyle="--"))
    figure.legend(handles=marks, fontsize=8, frameon=False, loc="outside lower center", ncols=3)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--show", type=Path, help="a record to draw instead of measuring; with --picture")
    parser.add_argument("--picture", type=Path, help="a file for the picture; its suffix is the format")


def shown(options: argparse.Namespace, panels: Panels) -> bool:
    """Draws the record if the options name a picture; returns whether they do."""
    if options.show is None:
        return False
    if options.picture is None:
        raise SystemExit("--show needs --picture FILE")
    picture(json.loads(options.show.read_text()), panels, options.picture)
    return True
