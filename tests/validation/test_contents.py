"""Validation at level full accepts the values that the spec of an operand names: finite, least, marked_by, rising."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.operands import Contents, Dim, TensorSpec, index_spec, num_valid_spec

ROWS, WIDE = Dim("rows", 3), (Dim("rows", 3), Dim("columns", 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentArgs(Args):
    x: Any = None


class ContentDescriptor(Descriptor[ContentArgs]):
    op: str = "content"
    args_type: ClassVar[type[Args]] = ContentArgs
    row: str

    def operands(self) -> dict[str, TensorSpec]:
        return SPECS[self.row] | {"count": num_valid_spec(3)}


SPECS = {
    "finite": {"x": TensorSpec(WIDE, "f32")},
    "any": {"x": TensorSpec(WIDE, "f32", contents=Contents(finite=False))},
    "least": {"x": TensorSpec(WIDE, "f32", contents=Contents(least=0.5))},
    "marked": {
        "x": TensorSpec(WIDE, "f32", contents=Contents(marked_by="mark")),
        "mark": TensorSpec((ROWS,), "f32", contents=Contents(finite=False)),
    },
    "valid rows": {"x": TensorSpec(WIDE, "f32", valid_rows="count", contents=Contents(least=0.5))},
    "rising": {"x": index_spec(ROWS)._replace(contents=Contents(rising=True))},
    "index": {"x": index_spec(ROWS)},
    "written": {"x": TensorSpec(WIDE, "f32", "out", contents=Contents(least=0.5))},
}
X = [[math.nan, 1.0], [0.4, 0.5], [-math.inf, 2.0]]
WRONG = {
    "finite": ([[1, 0], [0, 0], [1, 0]], "finite values"),
    "least": ([[1, 0], [1, 0], [1, 0]], "finite values of at least 0.5"),
    "marked": ([[0, 0], [0, 0], [1, 0]], "finite values"),
    "valid rows": ([[1, 0], [1, 0], [0, 0]], "finite values of at least 0.5"),
}


@pytest.mark.parametrize("row", ["finite", "any", "least", "marked", "valid rows", "written"])
def test_a_float_is_wrong_as_its_spec_says(row):
    args = SimpleNamespace(x=torch.tensor(X), mark=torch.tensor([-math.inf, math.inf, math.nan]), count=torch.tensor([2]))
    found = ContentDescriptor(row=row).wrong_values("x", args)
    assert (None if found is None else (found[0].int().tolist(), found[1])) == WRONG.get(row)


@pytest.mark.parametrize(("values", "wrong"), [([5, 5, 6], [0, 0, 0]), ([0, 3, 2], [0, 0, 1]), ([4, -1, 0], [0, 1, 0])])
def test_an_index_that_should_rise_does_not_fall(values, wrong):
    args = SimpleNamespace(x=torch.tensor(values, dtype=torch.int32))
    found = ContentDescriptor(row="rising").wrong_values("x", args)
    assert (found[0].int().tolist(), found[1]) == (wrong, "an entry not below the one before")
    assert ContentDescriptor(row="index").wrong_values("x", args) is None
