"""Charts as inline SVG from a bench record: a roofline, and adjacent bars. Colours are CSS classes of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from opfacade.bench.table import duration, problems

if TYPE_CHECKING:
    from collections.abc import Callable

Rows = Sequence[dict[str, Any]]
_WIDTH, _HEIGHT = 560, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 30, 14, 46
_BAR, _GAP, _LETTER = 17, 12, 6.6


NOISY = 0.1  # relative noise of a time, above which it is marked


def noise(share: float) -> str:
    """The noise of a time, with a word if it is large."""
    return f"±{share:.1%}" + (" noisy" if share > NOISY else "")


def names(record: dict[str, Any]) -> list[str]:
    """The contenders that were timed, ours first. The position determines the colour."""
    found = {row["impl"] for row in record["rows"] if "us" in row}
    return sorted(found, key=lambda name: (not name.startswith("opfacade"), name))


def _colour(contenders: Sequence[str], name: str) -> str:
    return f"c{contenders.index(name) % 6}"


def _text(x: float, y: float, words: str, anchor: str = "start", look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{look}">{escape(words)}</text>'


def roofline(record: dict[str, Any]) -> str:
    """TFLOP/s against FLOP per byte, both logarithmic, below the machine's ceilings; "" if no problem has floating-point
    operations."""
    rows = [row for row in record["rows"] if "us" in row and row["flops"] > 0 and row["bytes"] > 0]
    if not rows:
        return ""
    top = record["ceilings"]
    ridge = top["TFLOPs"] / top["TBs"]
    xs = [row["flops"] / row["bytes"] for row in rows]
    low, high = _decades([*xs, ridge])
    bottom, ceiling = _decades([*(row["TFLOPs"] for row in rows), top["TFLOPs"], min(xs) * top["TBs"]])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low) / (high - low)
        up = (math.log10(y) - bottom) / (ceiling - bottom)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [*_grid(at, (low, high), (bottom, ceiling))]
    start = max(10.0**low, 10.0**bottom / top["TBs"])
    roof = [at(start, start * top["TBs"]), at(ridge, top["TFLOPs"]), at(10.0**high, top["TFLOPs"])]
    parts.append(f'<polyline class="roof" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in roof)}"/>')
    parts.append(_text(roof[2][0] - 4, roof[2][1] - 6, f"{top['TFLOPs']:.3g} TFLOP/s", "end", "note"))
    parts.append(_text(roof[0][0] + 8, roof[0][1] - 4, f"{top['TBs']:.3g} TB/s", look="note"))
    contenders = names(record)
    for row, across in zip(rows, xs, strict=True):
        x, y = at(across, row["TFLOPs"])
        title = escape(f"{row['name']}: {row['impl']}, {row['TFLOPs']:.3g} TFLOP/s, {row['TBs']:.3g} TB/s")
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="4.5"'
        parts.append(f'<circle class="{_colour(contenders, row["impl"])}" {place}><title>{title}</title></circle>')
    parts.append(_text(_WIDTH / 2, _HEIGHT - 8, "FLOP for each byte that must be moved", "middle", "note"))
    parts.append(f'<text transform="translate(14,{_HEIGHT / 2}) rotate(-90)" text-anchor="middle" class="note">TFLOP/s</text>')
    return _svg(_WIDTH, _HEIGHT, "roofline", parts)


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """The powers of ten that enclose the values."""
    found = [math.log10(value) for value in values if value > 0]
    low, high = math.floor(min(found) - 0.05), math.ceil(max(found) + 0.05)
    return low, max(high, low + 1)


def _grid(at: Callable[[float, float], tuple[float, float]], across: tuple[int, int], up: tuple[int, int]) -> Iterable[str]:
    for power in range(across[0], across[1] + 1):
        (x, y), (_, end) = at(10.0**power, 10.0 ** up[0]), at(10.0**power, 10.0 ** up[1])
        yield f'<line class="grid" x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{end:.1f}"/>'
        yield _text(x, y + 16, f"{10.0**power:g}", "middle", "note")
    for power in range(up[0], up[1] + 1):
        (x, y), (end, _) = at(10.0 ** across[0], 10.0**power), at(10.0 ** across[1], 10.0**power)
        yield f'<line class="grid" x1="{x:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}"/>'
        yield _text(x - 6, y + 4, f"{10.0**power:g}", "end", "note")


def bars(record: dict[str, Any]) -> str:
    """For each problem, a bar for each contender with its time relative to the fastest; shorter is better. "" if nothing was
    timed."""
    timed = [[row for row in rows if "us" in row] for rows in problems(record)]
    timed = [rows for rows in timed if rows]
    if not timed:
        return ""
    contenders, width = names(record), 1000
    left = 24 + _LETTER * max(len(rows[0]["name"]) for rows in timed)
    widest = min(4.0, max(row["us"] / min(r["us"] for r in rows) for rows in timed for row in rows))
    scale = (width - left - 170) / max(widest, 1.0)
    parts, y = [], 8.0
    for rows in timed:
        best = min(row["us"] for row in rows)
        parts.append(_text(left - 12, y + len(rows) * _BAR / 2 + 4, rows[0]["name"], "end"))
        for row in rows:
            ratio = row["us"] / best
            long = min(ratio, widest) * scale
            title = escape(f"{row['impl']}: {row['us']:.2f} us, {row['noise']:.1%} noise, {row['samples']} samples")
            shape = f'x="{left:.1f}" y="{y:.1f}" width="{long:.1f}" height="{_BAR - 3}" rx="2"'
            parts.append(f'<rect class="{_colour(contenders, row["impl"])}" {shape}><title>{title}</title></rect>')
            more = f"  {ratio:.1f}x" if ratio > widest else ""
            look = "note bad" if row["noise"] > NOISY else "note"
            parts.append(_text(left + long + 6, y + _BAR - 6, f"{duration(row['us'])} {noise(row['noise'])}{more}", look=look))
            y += _BAR
        y += _GAP
    parts.append(f'<line class="roof" x1="{left + scale:.1f}" y1="0" x2="{left + scale:.1f}" y2="{y:.1f}"/>')
    return _svg(width, y, "times of each problem over the fastest", parts)


def legend(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs (CSS class, contender)."""
    contenders = names(record)
    return [(_colour(contenders, name), name) for name in contenders]


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
