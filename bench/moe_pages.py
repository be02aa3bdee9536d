"""The table of docs/ops/moe.md, from the record of bench.moe."""

from __future__ import annotations

from collections.abc import Iterator

from bench.operators import Record

HEAD = ["| layer | rows | us | share of the ceiling | fastest peer, us | speed-up over it |", "|---|---|---|---|---|---|"]


def lines(of: Record) -> list[str]:
    return [*HEAD, *map(_line, of["rows"])]


def left(of: Record) -> Iterator[str]:
    """A sentence on the problems that the run had no time for."""
    if of["left"]:
        yield ""
        count = len(of["left"])
        yield f"The run had no time for {count} of {count + len(of['rows'])} problems, which its record names."


def _line(row: Record) -> str:
    peers = {name: one["median"] for name, one in row["peers"].items()}
    name = min(peers, key=lambda peer: peers[peer], default=None)
    beside = "no peer was timed | " if name is None else f"{name} {peers[name]:.1f} | {row['of_best_peer']:.2f}"
    layer = f"{row['layer']}, {row['kind']}"
    return f"| {layer} | {row['tokens']} | {row['us']['median']:.1f} | {row['of_floor']:.2f} | {beside} |"
