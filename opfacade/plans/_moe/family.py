"""Base of the descriptors of family `moe` that are defined outside `opfacade.plans.moe`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from opfacade.core.descriptor import ArgsT, Descriptor
from opfacade.core.model import Size

MAX_EXPERTS = 1024
MAX_K = 16

Experts = Annotated[Size, Field(le=MAX_EXPERTS)]
TopK = Annotated[Size, Field(le=MAX_K)]


class MoeOp(Descriptor[ArgsT]):
    category: ClassVar[str] = "moe"

    @classmethod
    def family(cls) -> str:
        return "moe"
