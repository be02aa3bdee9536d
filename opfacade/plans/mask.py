"""Packing of boolean masks into bits, the format of `custom_mask` in attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.model import Count
from opfacade.core.operands import TensorSpec, dims_of, index_spec
from opfacade.core.target import Target, of_device
from opfacade.errors import Issue, from_issues
from opfacade.plan import Plan
from opfacade.validation.rules import index_error

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PackMaskArgs", "PackMaskDescriptor", "PackMaskPlan", "pack_mask", "segment_packbits"]

BitOrder = Literal["little", "big"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackMaskArgs(Args):
    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "mask": "uint8 [num_bits]: any nonzero value is true",
        "bits_indptr": "int32 [batch_size + 1]: first entry of each request; with segments='indptr'",
        "packed": "written: uint8 [(num_bits + 7 * batch_size) // 8]",
        "packed_indptr": "written: int32 [batch_size + 1], the first byte of each request and the end of the last",
    })  # fmt: skip
    mask: Tensor
    bits_indptr: Tensor | None = None
    packed: Tensor
    packed_indptr: Tensor


class PackMaskDescriptor(Descriptor[PackMaskArgs]):
    """Pack eight entries of a mask into a byte; each request begins with a new byte.

    mask: uint8 [num_bits]; every value except 0 is true; convert a bool tensor by `.view(torch.uint8)`.
    segments: "indptr" has the operand bits_indptr, int32 [batch_size + 1]: request b has the entries bits_indptr[b] to
    bits_indptr[b + 1] - 1. "even" has no such operand: each request has num_bits // batch_size entries.
    packed: uint8 [num_bytes], num_bytes = (num_bits + 7 * batch_size) // 8; bytes after the last request are 0. packed_indptr:
    int32 [batch_size + 1], the first byte of each request and the end of the last one. Entry i of a request is bit i % 8 of its
    byte i // 8; bit 0 is the least significant bit ("little") or the most significant bit ("big"). Remaining bits are 0.
    """

    op: Literal["pack_mask"] = Field(default="pack_mask", description="The operator.")
    category: ClassVar[str] = "mask"
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    sizes: ClassVar[frozenset[str]] = frozenset({"batch_size", "num_bits"})
    batch_size: Count = Field(description="Requests, 0 or more.")
    num_bits: Count = Field(description="Entries of the mask over all requests.")
    segments: Literal["indptr", "even"] = Field(
        default="indptr",
        description='"indptr": the operand bits_indptr has starts of requests; "even": all have the same number of entries.',
    )
    bit_order: BitOrder = Field(
        default="little",
        description="Whether entry 0 is the least significant bit (little) or the most significant bit (big) of a byte.",
    )

    @property
    def num_bytes(self) -> int:
        """Largest number of bytes that the requests need."""
        return (self.num_bits + 7 * self.batch_size) // 8

    def operands(self) -> dict[str, TensorSpec]:
        starts = index_spec(*dims_of(self, "batch_size+1"))
        found = {"mask": TensorSpec(dims_of(self, "num_bits"), "u8", "in", "contiguous", alignment=1)}
        if self.segments == "indptr":
            found["bits_indptr"] = starts
        found["packed"] = TensorSpec(dims_of(self, "num_bytes"), "u8", "out", "contiguous", alignment=4)
        found["packed_indptr"] = starts._replace(role="out")
        return found


class PackMaskPlan(Plan[PackMaskArgs]):
    """Packing boolean masks into bits."""


def pack_mask(mask: Tensor, *, bit_order: BitOrder = "little") -> tuple[Tensor, Tensor]:
    """Computes `packed_mask` and `mask_indptr` for attention from the masks of requests of equal shape, in one launch on a GPU.

    mask: bool or uint8 [batch, q_len, kv_len], contiguous. Returns uint8 [num_bytes] and int32 [batch + 1]. Raises DTypeError,
    ShapeError, LayoutError or ArgumentTypeError.
    """
    entries = _entries("pack_mask", "mask", mask, 3)
    return _packed(entries, None, PackMaskDescriptor(
        batch_size=mask.shape[0], num_bits=entries.numel(), segments="even", bit_order=bit_order
    ))  # fmt: skip


def segment_packbits(bits: Tensor, indptr: Tensor, *, bit_order: BitOrder = "little") -> tuple[Tensor, Tensor]:
    """Each segment of a flat mask packed into separate bytes, in one launch on a GPU, without synchronisation.

    bits: bool or uint8 [n]. indptr: int32 [batch + 1], on the device of bits. Returns uint8 [(n + 7 * batch) // 8], with zeros
    after the last segment, and the segments' first bytes, int32 [batch + 1]. Raises as `pack_mask`, and on the CPU
    IndexDataError for segments that descend or leave 0 to n; on a GPU, indptr is not read by the host, and such a segment is
    clamped."""
    entries = _entries("segment_packbits", "bits", bits, 1)
    _refuse_segments(indptr, entries.numel())
    batch = max(0, indptr.shape[0] - 1) if hasattr(indptr, "shape") and len(indptr.shape) == 1 else 0
    return _packed(entries, indptr, PackMaskDescriptor(batch_size=batch, num_bits=entries.numel(), bit_order=bit_order))


def _refuse_segments(indptr: object, bits: int) -> None:
    """Raises for an indptr in host memory that decreases or leaves the range 0 to bits. The plan checks its shape and type."""
    import torch

    if not isinstance(indptr, torch.Tensor) or indptr.is_nested or indptr.layout != torch.strided:
        return
    if indptr.device.type != "cpu" or indptr.dim() != 1 or indptr.dtype != torch.int32:
        return
    least = 0
    for position, start in enumerate(indptr.tolist()):
        if not least <= start <= bits:
            raise index_error("segment_packbits", "indptr", position, start, f"a start in [{least}, {bits}]")
        least = start


def _packed(entries: Tensor, indptr: Tensor | None, descriptor: PackMaskDescriptor) -> tuple[Tensor, Tensor]:
    import torch

    device = entries.device
    target = of_device(device.index or 0) if device.type == "cuda" else Target.cpu()
    packed = torch.empty(descriptor.num_bytes, dtype=torch.uint8, device=device)
    starts = torch.empty(descriptor.batch_size + 1, dtype=torch.int32, device=device)
    args = PackMaskArgs(mask=entries, bits_indptr=indptr, packed=packed, packed_indptr=starts)
    PackMaskPlan.select(descriptor, target=target).run(args)
    return packed, starts


def _entries(op: str, name: str, mask: object, rank: int) -> Tensor:
    """The mask, an argument of this name, as a flat byte tensor."""
    import torch

    shape = ("n",) if rank == 1 else ("batch", "q_len", "kv_len")
    if not isinstance(mask, torch.Tensor):
        issue = Issue("OPF-A002", name, "a torch.Tensor", type(mask).__name__, kind="ArgumentTypeError")
    elif mask.is_nested or mask.layout != torch.strided:
        got = "nested" if mask.is_nested else str(mask.layout)
        issue = Issue("OPF-A004", name, "a strided dense tensor", got, kind="LayoutError")
    elif mask.dtype not in (torch.bool, torch.uint8):
        hint = f"An additive mask is none of bits: use {name} == 0."
        issue = Issue("OPF-A010", name, "torch.bool or torch.uint8", str(mask.dtype), hint, kind="DTypeError")
    elif mask.dim() != rank:
        issue = Issue("OPF-A011", name, f"shape [{', '.join(shape)}]", str(list(mask.shape)), kind="ShapeError")
    elif not mask.is_contiguous():
        hint = f"Use {name}.contiguous()."
        issue = Issue("OPF-A020", name, "a contiguous tensor", f"strides {mask.stride()}", hint, kind="LayoutError")
    else:
        return mask.view(torch.uint8).view(-1)
    raise from_issues(op, "run", [issue])


EXAMPLES = (
    PackMaskDescriptor(batch_size=4, num_bits=4 * 128 * 512, segments="even"),
    PackMaskDescriptor(batch_size=7, num_bits=6300),
    PackMaskDescriptor(batch_size=3, num_bits=63, bit_order="big"),
)
