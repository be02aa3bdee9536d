"""Summaries of random problems for pages: their number, how many are slower than the fastest peer, and the worst ones."""

from __future__ import annotations

from collections.abc import Sequence

from bench.operators import Record

HEAD = ["| worst random problems | us | fastest peer, us | speed-up over it |", "|---|---|---|---|"]
_WORST = 3


def lines(rows: Sequence[Record], not_reached: int = 0) -> list[str]:
    """rows: each has the problem, the us by contender (ours is opfacade), and the ratio of the fastest peer's time to ours if
    there is a peer. not_reached: the number of problems for which no time was left."""
    beside = sorted((row for row in rows if row.get("ratio") is not None), key=lambda row: row["ratio"])
    slower = sum(row["ratio"] < 1 for row in beside)
    counted = (
        f"{len(beside)} random problems, compared with other libraries: ours is slower than the fastest in {slower} of them."
    )
    more = [f"{not_reached} more were not reached in time."] if not_reached else []
    return [counted, *more, "", *HEAD, *map(_line, beside[:_WORST])]


def _line(row: Record) -> str:
    peers = {name: us for name, us in row["us"].items() if name != "opfacade"}
    name = min(peers, key=lambda peer: peers[peer])
    return f"| {row['problem']} | {row['us']['opfacade']:.1f} | {name} {peers[name]:.1f} | {row['ratio']:.2f} |"


def products(of: Record) -> list[Record]:
    """The rows of matmul.json in the form that `lines` expects."""
    found = []
    for row in of["rows"]:
        us = {"opfacade": row["us"]["median"]} | {name: one["median"] for name, one in row["peers"].items()}
        problem = f"{row['kind']} {row['rows']} x {row['n']} x {row['k']}"
        found.append({"problem": problem, "us": us, "ratio": row["of_best_peer"], "random": row["table"] == "sweep"})
    return found
