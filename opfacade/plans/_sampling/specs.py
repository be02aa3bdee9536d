"""Common operands of sampling ops: rows, and adjustments of logits."""

from __future__ import annotations

from typing import Protocol

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.model import contradiction
from opfacade.core.operands import Contents, Dim, Role, TensorSpec

_MOST_MASSES = 2**23 - 1  # maximum number of masses of 2^40 whose sum fits in i64


def check_masses(vocab: int) -> None:
    """Raises if rows have so many tokens that sums of masses may overflow."""
    if vocab > _MOST_MASSES:
        hint = "top_k and min_p alone, or a draw without filters, take more."
        raise contradiction("vocab", f"at most {_MOST_MASSES} if masses are added", vocab, hint)


class RowsOfLogits(Protocol):
    """The fields that decide the rows of an op."""

    @property
    def total_num_rows(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def num_valid(self) -> bool: ...


class Adjusted(Protocol):
    """The fields of adjustments."""

    @property
    def vocab(self) -> int: ...
    @property
    def bitmask(self) -> bool: ...
    @property
    def bias(self) -> str: ...
    @property
    def num_biases(self) -> int: ...
    @property
    def penalties(self) -> bool: ...


class Rows:
    """The specs of one call. count: its rows; valid: the operand with the number of valid rows, or ""."""

    def __init__(self, descriptor: RowsOfLogits) -> None:
        self.rows = Dim("total_num_rows", descriptor.total_num_rows)
        self.vocab = Dim("vocab", descriptor.vocab)
        self.valid = "num_valid" if descriptor.num_valid else ""

    def each(self, dtype: str, role: Role = "in") -> TensorSpec:
        """The spec of one entry per row."""
        return TensorSpec((self.rows,), dtype, role, "contiguous", ITEMSIZE[dtype], valid_rows=self.valid)

    def table(self, dtype: str, columns: Dim | None = None, role: Role = "in") -> TensorSpec:
        """`columns` entries for each row; by default, the vocabulary. Logits and biases may contain any value."""
        spec = TensorSpec((self.rows, columns or self.vocab), dtype, role, "rows", ITEMSIZE[dtype], valid_rows=self.valid)
        return spec._replace(contents=Contents(finite=False))


def adjustments(descriptor: Adjusted, rows: Rows) -> dict[str, TensorSpec]:
    """The operands of a descriptor's adjustments, in the order of their application."""
    found: dict[str, TensorSpec] = {}
    if descriptor.bitmask:
        words = (descriptor.vocab + 31) // 32
        found["bitmask"] = rows.table("i32", Dim("ceil(vocab / 32)", words))
    if descriptor.bias == "dense":
        found["bias"] = rows.table("f32")
    if descriptor.bias == "sparse":
        entries = Dim("num_biases", descriptor.num_biases)
        found |= {"bias_tokens": rows.table("i32", entries), "bias_values": rows.table("f32", entries)}
    if descriptor.penalties:
        found |= {"prompt_mask": rows.table("bool"), "output_counts": rows.table("i32")}
        found |= {name: rows.each("f32") for name in ("repetition", "frequency", "presence")}
    return found
