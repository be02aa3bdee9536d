"""Checks of the links of draft trees at level full: each link leads to an existing node, and no two links to the same node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FIRST, NEXT = LINKS = ("first_child", "next_sibling")


def wrong_links(links: Mapping[str, Tensor], requests: int) -> dict[str, Tensor]:
    """The invalid links of the first `requests` trees, as a mask for each operand."""
    import torch

    wrong = {name: torch.zeros_like(links[name], dtype=torch.bool) for name in LINKS}
    rows = {name: links[name][:requests].tolist() for name in LINKS}
    for request in range(requests):
        for name, node in _wrong({link: rows[link][request] for link in LINKS}):
            wrong[name][request, node] = True
    return wrong


def _wrong(links: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int]]:
    """Links, in depth-first order from the root, that lead to a visited or missing node. Other invalid links are never
    followed."""
    met, left = {0}, [(FIRST, 0)]
    while left:
        name, node = left.pop()
        to = links[name][node]
        if to == -1:
            continue
        if to in met or not 0 < to < len(links[name]):
            yield name, node
            continue
        met.add(to)
        left += [(NEXT, to), (FIRST, to)]
