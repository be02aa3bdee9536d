"""Base of the descriptors of family `collective` that are defined outside `opfacade.plans.collective`."""

from __future__ import annotations

from typing import ClassVar, Literal

from opfacade.core.descriptor import ArgsT, Descriptor
from opfacade.plans._world import WORLD, World

DType = Literal["f32", "bf16", "f16"]


class CollectiveOp(Descriptor[ArgsT]):
    category: ClassVar[str] = "collective"
    world: World = WORLD

    @classmethod
    def family(cls) -> str:
        return "collective"
