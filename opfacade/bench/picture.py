"""A record as a picture: a roofline on the left, and on the right a bar for each contender of each problem."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opfacade.base.installation import install
from opfacade.bench.table import duration, fastest, problems
from opfacade.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0b6e4f", "#d1495b", "#30638e", "#edae49", "#6c5b7b", "#7d8491")
_MOST = 24  # maximum number of problems in a readable picture
_TALL = 6.5  # maximum height of a roofline in inches


def picture(record: dict[str, Any], path: Path) -> None:
    """Write the picture to `path`; its suffix says the format (svg, png, pdf). Needs matplotlib, of the extra `bench`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = f"bench.picture: matplotlib is not installed. Use: {install('bench')}. [OPF-B001]"
        raise UnsupportedError(message, code="OPF-B001", op="bench", stage="picture") from error
    shown = [rows for rows in problems(record) if fastest(rows)][:_MOST]
    bars = sum(1 for rows in shown for row in rows if "us" in row)
    height = max(4.5, 0.28 * bars + 0.28 * len(shown) + 1.2)
    figure = Figure(figsize=(15, height), layout="constrained")
    rows: Any = [["roof", "bars"], [".", "bars"]] if height > _TALL else [["roof", "bars"]]
    places = figure.subplot_mosaic(
        rows, width_ratios=(1, 1.35), height_ratios=(_TALL, height - _TALL) if height > _TALL else (1,)
    )
    left, right = places["roof"], places["bars"]
    names = sorted({row["impl"] for rows in shown for row in rows if "us" in row}, key=lambda name: (not _ours(name), name))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    _roofline(left, record, shown, colours)
    _bars(right, shown, colours)
    marks, words = left.get_legend_handles_labels()
    figure.legend(marks, words, fontsize=8, frameon=False, loc="outside lower left", ncols=4)  # not on the data
    figure.suptitle(f"{record['machine']['device']}  ·  {record['machine']['date'][:10]}  ·  {record['timer']}", fontsize=11)
    figure.savefig(path, dpi=120)


def _ours(name: str) -> bool:
    return name.startswith("opfacade")


def _roofline(axes: Axes, record: dict[str, Any], shown: list[list[dict[str, Any]]], colours: dict[str, str]) -> None:
    points = [(row["flops"] / row["bytes"], row["TFLOPs"], row["impl"]) for rows in shown for row in rows if _has_flops(row)]
    top = record["ceilings"]
    ridge = top["TFLOPs"] / top["TBs"]
    low, high = min([p[0] for p in points] + [ridge]) / 2, max([p[0] for p in points] + [ridge]) * 2
    edge = [low, ridge, high]
    axes.plot(edge, [min(top["TFLOPs"], x * top["TBs"]) for x in edge], color="#222222", linewidth=1.5)
    axes.annotate(f"{top['TFLOPs']:.3g} TFLOP/s", (high, top["TFLOPs"]), ha="right", va="bottom", fontsize=9)
    axes.annotate(f"{top['TBs']:.3g} TB/s", (low, low * top["TBs"]), ha="left", va="top", fontsize=9, rotation=0)
    for name, colour in colours.items():
        own = [p for p in points if p[2] == name]
        marker = "o" if _ours(name) else "^"
        axes.scatter([p[0] for p in own], [p[1] for p in own], s=36, color=colour, marker=marker, label=name, alpha=0.85)
    axes.set(xscale="log", yscale="log", xlabel="FLOP for each byte that must be moved", ylabel="TFLOP/s")
    axes.set_title("How close to what this machine can do", loc="left", fontsize=11)
    axes.grid(visible=True, which="both", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _has_flops(row: dict[str, Any]) -> bool:
    return "us" in row and row["flops"] > 0


def _bars(axes: Axes, shown: list[list[dict[str, Any]]], colours: dict[str, str]) -> None:
    """Times relative to the best of each problem, so that problems of different sizes can be compared."""
    place, ticks, labels = 0.0, [], []
    for rows in shown:
        timed = [row for row in rows if "us" in row]
        best = min(row["us"] for row in timed)
        ticks.append(place + (len(timed) - 1) / 2)
        labels.append(rows[0]["name"])
        for row in timed:
            ratio = row["us"] / best
            noise = ratio * row["noise"]
            reach = [[min(noise, ratio)], [noise]]
            axes.barh(place, ratio, height=0.86, color=colours[row["impl"]], xerr=reach, ecolor="#555555")
            axes.annotate(f" {duration(row['us'])}", (ratio + noise, place), va="center", fontsize=8)
            place += 1
        place += 0.8
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_ylim(place - 0.8, -0.8)
    axes.axvline(1, color="#222222", linewidth=1)
    axes.set_xlabel("time over the fastest of the problem")
    axes.set_title("Side by side: shorter is better", loc="left", fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
