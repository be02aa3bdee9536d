"""Results of FlashInfer's calls: o times a factor, and lse in the requested base and layout (a plan's lse is natural)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from opfacade.compat.dtypes import FP8
from opfacade.compat.refusals import require_tensor, truth, wrong, wrong_shape

LOG2E, LN2 = math.log2(math.e), math.log(2.0)


class LseForm(NamedTuple):
    """returned: whether the call returns lse. base: "log2" or "ln"; layout: "NH" [rows, heads] or "HN" [heads, rows]. given:
    the caller's tensor in that layout, which is written even if lse is not returned."""

    returned: bool
    base: str = "log2"
    layout: str = "NH"
    given: torch.Tensor | None = None

    def checked(self, op: str, rows: int, heads: int) -> LseForm:
        if not isinstance(self.base, str) or self.base not in ("log2", "ln"):
            raise wrong(op, "lse_base", "'log2' or 'ln'", repr(self.base))
        if not isinstance(self.layout, str) or self.layout not in ("NH", "HN"):
            raise wrong(op, "lse_layout", "'NH' or 'HN'", repr(self.layout))
        shape = (rows, heads) if self.layout == "NH" else (heads, rows)
        if self.given is not None and require_tensor(op, "lse", self.given, "rows, heads") != shape:
            raise wrong_shape(op, "lse", str(list(shape)), list(self.given.shape))
        return self if type(self.returned) is bool else self._replace(returned=truth(op, "return_lse", self.returned))

    @property
    def wanted(self) -> bool:
        return self.returned or self.given is not None

    @property
    def operand(self) -> torch.Tensor | None:
        """The caller's tensor, if the plan can write to it directly."""
        return self.given if self.layout == "NH" else None

    def finished(self, lse: torch.Tensor) -> torch.Tensor:
        if self.base == "log2":
            lse.mul_(LOG2E)
        if self.layout == "NH":
            return lse
        return lse.t().contiguous() if self.given is None else self.given.copy_(lse.t())


def finished(o: torch.Tensor, lse: torch.Tensor | None, form: LseForm, after: float | torch.Tensor | None = None) -> Any:
    """Returns o, or o and lse."""
    if after is not None:
        o = o.copy_(o.float() * after) if o.dtype in FP8 else o.mul_(after)
    if lse is None:
        return o
    lse = form.finished(lse)
    return (o, lse) if form.returned else o
