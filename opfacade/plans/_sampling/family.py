"""Base of sampling descriptors that are defined beside `opfacade.plans.sampling`, their family."""

from __future__ import annotations

from typing import ClassVar, Literal

from opfacade.core.descriptor import ArgsT, Descriptor

LogitsDType = Literal["f32", "bf16", "f16"]


class SamplingOp(Descriptor[ArgsT]):
    category: ClassVar[str] = "sampling"

    @classmethod
    def family(cls) -> str:
        return "sampling"
