"""StrideRule: the strides that an operand may have. csrc/host/call_signature.h checks the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from opfacade.core.overlap import self_overlaps

Layout = Literal["rows", "contiguous", "strided"]


class View(NamedTuple):
    """Names, sizes and strides (in elements) of a tensor's axes, and the bytes per element."""

    names: Sequence[str]
    shape: Sequence[int]
    stride: Sequence[int]
    itemsize: int


class Broken(NamedTuple):
    """A violated rule: its code, the expected strides, and a hint. copy_helps: whether a contiguous copy would comply."""

    code: str
    expected: str
    hint: str = ""
    copy_helps: bool = False


class StrideRule(NamedTuple):
    """layout, step and multiple: as in TensorSpec. expandable: the axes that may have stride 0."""

    layout: Layout
    written: bool
    expandable: tuple[int, ...]
    step: int = 1
    multiple: tuple[int, int] | None = None

    def broken(self, view: View) -> Broken | None:
        """The first rule that a non-empty tensor violates. The stride of an axis of size 1 is ignored."""
        names, shape, stride, itemsize = view
        if self.layout == "contiguous":
            return None if _is_contiguous(shape, stride) else Broken("OPF-A020", "a contiguous tensor", copy_helps=True)
        rows = self.layout == "rows" and len(shape) > 0 and shape[-1] > 1
        if rows and stride[-1] != 1:
            return Broken("OPF-A021", "stride 1 in the last dimension")
        steps = [(axis, s) for axis, (n, s) in enumerate(zip(shape, stride, strict=True)) if n > 1]
        if self.written and any(s <= 0 for _, s in steps):
            return Broken("OPF-A022", "positive strides", "Expanded tensors alias.")
        if any(s <= 0 and axis not in self.expandable for axis, s in steps):
            allowed = ", ".join(names[axis] for axis in self.expandable) or "no dimension"
            return Broken("OPF-A026", f"stride 0 in {allowed} alone", copy_helps=True)
        if self.written and self_overlaps(shape, stride):
            return Broken("OPF-A023", "an output whose elements do not overlap")
        if any(s * itemsize % self.step for _, s in (steps[:-1] if rows else steps)):
            return Broken("OPF-A027", f"strides of whole {self.step} bytes")
        return None if self.multiple is None else _multiple(*self.multiple, view)


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    step = 1
    for n, s in zip(reversed(shape), reversed(stride), strict=True):
        if n > 1 and s != step:
            return False
        step *= n
    return True


def _multiple(outer: int, inner: int, view: View) -> Broken | None:
    """The stride of `outer` is a multiple of that of `inner`."""
    names, shape, stride, _ = view
    if shape[outer] <= 1 or shape[inner] <= 1 or stride[outer] % max(1, stride[inner]) == 0:
        return None
    return Broken("OPF-A028", f"{names[outer]} a whole number of {names[inner]} apart")
