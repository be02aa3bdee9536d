"""WeightForm: the form of an operand that is a quantised weight."""

from __future__ import annotations

from typing import NamedTuple

from opfacade.core.dtypes import ITEMSIZE, DType
from opfacade.core.operands import Contents, Dim, TensorSpec, index_spec
from opfacade.plans._weights.weight import Weight

_ZEROS = 128  # upper bound of zero points: bf16 represents all differences exactly


class WeightForm(NamedTuple):
    """The codes of a weight, and the tensors that define the numbers they represent.

    lead: the axes before n. factors: the shape of the global scale.
    """

    weight: Weight
    lead: tuple[Dim, ...]
    n: Dim
    k: int
    factors: tuple[Dim, ...] = (Dim("1", 1),)

    def tensors(self, name: str) -> dict[str, TensorSpec]:
        """The codes have the name of the operand, the others this name and the suffix _scale, _zero, _global or _groups."""
        weight, k = self.weight, self.k
        scale = self._table(weight.scale_dtype)
        found = {name: self._codes(), f"{name}_scale": scale}
        if weight.zero == "int":
            found[f"{name}_zero"] = self._table("u8")._replace(contents=Contents((0, _ZEROS)))
        elif weight.zero != "none":
            found[f"{name}_zero"] = scale
        if weight.global_scale:
            found[f"{name}_global"] = TensorSpec(self.factors, "f32", "in", "contiguous", 4)
        if weight.num_groups is not None:
            found[f"{name}_groups"] = index_spec(Dim("k", k), values=(0, weight.num_groups))
        return found

    def _codes(self) -> TensorSpec:
        if self.weight.packed:
            return TensorSpec((*self.lead, self.n, Dim("k / 2, up", (self.k + 1) // 2)), "u8", "in", "rows", 1)
        return TensorSpec((*self.lead, self.n, Dim("k", self.k)), "f8_e4m3", "in", "rows", 1)

    def _table(self, dtype: DType) -> TensorSpec:
        """One entry for each group of each column."""
        table = (*self.lead, self.n, Dim("groups of k", self.weight.groups(self.k)))
        return TensorSpec(table, dtype, "in", "strided", ITEMSIZE[dtype])
