"""Base of the descriptors of family `sampling` that are defined outside `opfacade.plans.sampling`."""

from __future__ import annotations

from typing import ClassVar, Literal

from opfacade.core.descriptor import ArgsT, Descriptor

LogitsDType = Literal["f32", "bf16", "f16"]


class SamplingOp(Descriptor[ArgsT]):
    category: ClassVar[str] = "sampling"

    @classmethod
    def family(cls) -> str:
        return "sampling"
