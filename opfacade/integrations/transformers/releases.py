"""The releases of transformers that the adapter knows, and their contracts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from opfacade.integrations.refusal import refuse

WAY = "transformers"
# paged: a call receives new rows and the cache. gathered: a call receives all keys and values, gathered into one tensor each.
Contract = Literal["paged", "gathered", "none"]


@dataclass(frozen=True, slots=True)
class Release:
    """The first release with this contract for continuous batching, and the name that it accepts for attention of other
    packages."""

    first: tuple[int, int]
    contract: Contract
    continuous: str
    reason: str = ""


_GATHERED = "opfacade_flash"  # 5.19 and later accept another package's name only if it contains "flash"
_RELEASES = (
    Release((5, 17), "paged", "paged|opfacade"),
    Release((5, 19), "gathered", _GATHERED),
    Release((5, 25), "none", "", "continuous batching was last tried with transformers 5.24"),
)


def parse(version: str) -> tuple[int, int]:
    """The major and minor number of a release; for an invalid text, the oldest known release."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def release_of(version: str) -> Release:
    """The contract of a version. Raises UnsupportedError for versions older than the first known one."""
    known = [release for release in _RELEASES if release.first <= parse(version)]
    if not known:
        first = ".".join(map(str, _RELEASES[0].first))
        refuse(WAY, "OPF-I005", "transformers", expected=f"{first} or later", got=version, hint="Install a later release.")
    return known[-1]
