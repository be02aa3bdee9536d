"""Base of sampling descriptors that are defined beside `opfacade.plans.sampling`, their family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from opfacade.core.descriptor import ArgsT, Descriptor
from opfacade.plans._elsewhere import ROWS

LogitsDType = Literal["f32", "bf16", "f16"]


class SamplingOp(Descriptor[ArgsT]):
    category: ClassVar[str] = "sampling"
    elsewhere: ClassVar[Mapping[str, str]] = ROWS

    @classmethod
    def family(cls) -> str:
        return "sampling"
