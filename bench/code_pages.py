"""The table of low-bit weights for docs/ops/matmul.md: the time of our product by a bf16 weight over that of each format."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench.operators import Record

TEXT = (
    "The time of our product by a bf16 weight divided by the time of each format, for several numbers of rows: the median of "
    "the layers, and in brackets the lowest of them."
)


def lines(of: Record) -> Iterator[str]:
    counts = sorted({row["rows"] for row in of["rows"]})
    yield f"| format | {' | '.join(map(str, counts))} |"
    yield "|---" * (1 + len(counts)) + "|"
    for name in dict.fromkeys(row["format"] for row in of["rows"]):
        shares = [[row["of_bf16"] for row in of["rows"] if (row["format"], row["rows"]) == (name, count)] for count in counts]
        cells = (f"{median(one):.2f} ({min(one):.2f})" if one else "" for one in shares)
        yield f"| {name} | {' | '.join(cells)} |"
