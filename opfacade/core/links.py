"""Links: the interconnect between the GPUs of one group, a field of Target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from opfacade.base.short_repr import shown
from opfacade.errors import Issue, from_issues

Kind = Literal["none", "pcie", "nvlink"]


@dataclass(frozen=True, slots=True)
class Links:
    """kind: the type of link. gb_per_s: bandwidth into one GPU. multicast: whether a candidate may use multicast; off by
    default."""

    kind: Kind = "none"
    gb_per_s: float = 0.0
    multicast: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise _bad("links.kind", f"one of {', '.join(get_args(Kind))}", self.kind)
        if type(self.gb_per_s) not in (int, float) or not 0 <= self.gb_per_s < 1e6:
            raise _bad("links.gb_per_s", "a number of GB/s, 0 or more", self.gb_per_s)
        if type(self.multicast) is not bool:
            raise _bad("links.multicast", "a bool", self.multicast)


def _bad(field: str, expected: str, got: object) -> Exception:
    return from_issues("Target", "", [Issue("OPF-D010", field, expected, shown(got), kind="DescriptorError")])


NO_LINKS = Links()
