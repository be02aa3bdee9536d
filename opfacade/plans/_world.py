"""The number of ranks of an op over several ranks, and the bytes that its exchange needs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from opfacade.core.model import Size

World = Annotated[Size, Field(le=72)]
WORLD: Any = Field(
    description="Number of ranks of the group, 1 to 72; a descriptor does not contain the rank, so it is equal on all ranks."
)
_LINE = 128


def arena(world: int, payload: int) -> int:
    """Bytes of a group's memory for one exchange in which every rank sends `payload` bytes to each rank. There are two halves,
    because a rank may be one call ahead, with a header for each rank."""
    return 2 * world * (-(-payload // _LINE) * _LINE + _LINE)
