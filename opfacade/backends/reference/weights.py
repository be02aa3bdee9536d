"""Checkpoints' weight layouts in torch: bytes, half bytes, and transposed views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from opfacade.backends.reference.declared import Pairs, reference
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.plans._weights.stored import Source
from opfacade.plans.weights import PackWeightsArgs, PackWeightsDescriptor, UnpackWeightsDescriptor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Layouts = PackWeightsDescriptor | UnpackWeightsDescriptor
_INTERLEAVED = [0, 4, 1, 5, 2, 6, 3, 7]  # the order of columns in an AWQ word


class _Layout(NamedTuple):
    """read: (problem, stored) -> codes [n, k]; write: the inverse."""

    read: Callable[[Layouts, Tensor], Tensor]
    write: Callable[[Layouts, Tensor], Tensor]


def _codes(words: Tensor) -> Tensor:
    """The codes of i32 or u8 words, [.., codes of a word], lowest bits first."""
    import torch

    raw = words.contiguous().view(torch.uint8).reshape(*words.shape, words.itemsize)
    return torch.stack((raw & 15, raw >> 4), -1).flatten(-2)


def _words(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `_codes`."""
    raw = codes[..., ::2] | codes[..., 1::2] << 4
    return raw.contiguous().view(dtype).flatten(-2)


def _by(table: Tensor, many: int) -> Tensor:
    """Reshapes [rows, columns] to [rows, columns / many, many]."""
    return table.reshape(len(table), -1, many)


def _straight(codes: Tensor) -> Tensor:
    return codes[..., _INTERLEAVED]


def _interleaved(codes: Tensor) -> Tensor:
    return codes[..., [0, 2, 4, 6, 1, 3, 5, 7]]


def _read_gptq(d: Layouts, stored: Tensor) -> Tensor:
    return _codes(stored).permute(1, 0, 2).flatten(1)


def _write_gptq(d: Layouts, codes: Tensor) -> Tensor:
    import torch

    return _words(_by(codes, 8).permute(1, 0, 2), torch.int32)


def _read_awq(d: Layouts, stored: Tensor) -> Tensor:
    return _straight(_codes(stored)).flatten(1).T


def _write_awq(d: Layouts, codes: Tensor) -> Tensor:
    import torch

    return _words(_interleaved(_by(codes.T, 8)), torch.int32)


def _read_rows(d: Layouts, stored: Tensor) -> Tensor:
    return _codes(stored).flatten(1)


def _write_words(d: Layouts, codes: Tensor) -> Tensor:
    import torch

    return _words(_by(codes, 8), torch.int32)


def _write_bytes(d: Layouts, codes: Tensor) -> Tensor:
    import torch

    made = _words(_by(codes, 2), torch.uint8)
    return _by(made, 16) if d.source == "mxfp4" else made


def _read_hqq(d: Layouts, stored: Tensor) -> Tensor:
    import torch

    return torch.cat((stored >> 4, stored & 15)).view(d.n, d.k)


def _write_hqq(d: Layouts, codes: Tensor) -> Tensor:
    high, low = codes.reshape(-1, d.weight_format.group or d.k).chunk(2)
    return high << 4 | low


# The codes of a tinygemm word are indexed by neighbour, half of a tile, and tile of k; neighbours are outermost.
def _read_tinygemm(d: Layouts, stored: Tensor) -> Tensor:
    codes = _codes(stored).reshape(d.n // 8, -1, 8, 4, d.inner_k_tiles // 2, 2, 2, 2)
    found: Tensor = codes.permute(0, 2, 1, 4, 6, 7, 3, 5).reshape(d.n, d.k)
    return found


def _write_tinygemm(d: Layouts, codes: Tensor) -> Tensor:
    import torch

    parts = codes.reshape(d.n // 8, 8, -1, d.inner_k_tiles // 2, 2, 2, 4, 2).permute(0, 2, 1, 6, 3, 7, 4, 5)
    return _words(parts.flatten(5).flatten(2, 3), torch.int32)


_LAYOUTS: Mapping[Source, _Layout] = {
    "gptq": _Layout(_read_gptq, _write_gptq),
    "gptq_v2": _Layout(_read_gptq, _write_gptq),
    "awq": _Layout(_read_awq, _write_awq),
    "compressed_tensors": _Layout(_read_rows, _write_words),
    "hqq": _Layout(_read_hqq, _write_hqq),
    "torchao": _Layout(_read_rows, _write_bytes),
    "tinygemm": _Layout(_read_tinygemm, _write_tinygemm),
    "mxfp4": _Layout(lambda d, stored: _read_rows(d, stored.flatten(1)), _write_bytes),
    "nvfp4": _Layout(_read_rows, _write_bytes),
}


def _read_zeros(d: Layouts, stored: Tensor) -> Tensor:
    """The scales as [n, groups]."""
    codes = _codes(stored)
    if d.source == "compressed_tensors":
        return codes.permute(0, 2, 1).flatten(0, 1)
    zeros = (_straight(codes) if d.source == "awq" else codes).flatten(1).T
    return zeros + 1 & 15 if d.source == "gptq" else zeros


def _write_zeros(d: Layouts, zeros: Tensor) -> Tensor:
    import torch

    if d.source == "compressed_tensors":
        return _words(_by((zeros & 15).T, 8).permute(1, 0, 2), torch.int32)
    codes = _by(((zeros - 1 if d.source == "gptq" else zeros) & 15).T, 8)
    return _words(_interleaved(codes) if d.source == "awq" else codes, torch.int32)


def _turned(d: Layouts, table: Tensor) -> Tensor:
    """A table with one value per group of a column: converts a checkpoint's table to [n, groups], or back."""
    if d.source == "hqq":
        return table.view(d.n, -1) if d.op == "pack_weights" else table.reshape(-1, 1)
    return table if d.source in ("compressed_tensors", "mxfp4", "nvfp4") else table.T


def _flip(d: Layouts) -> int:
    """Offset codes and two's complement differ in the highest bit."""
    return 8 if d.source in ("compressed_tensors", "tinygemm") and d.weight_format.dtype == "int4" else 0


def _convert(d: Layouts, args: PackWeightsArgs) -> None:
    """Processes one matrix at a time, so that temporary codes exist for only one."""
    names = [name for name, spec in d.operands().items() if "groups" not in name]
    for one in range(d.batch):
        part = {name: getattr(args, name)[one] if d.batch > 1 else getattr(args, name) for name in names}
        (_pack if d.op == "pack_weights" else _unpack)(d, part)
    if args.weight_groups is not None and args.stored_groups is not None:
        given, made = (args.stored_groups, args.weight_groups)
        (made.copy_(given) if d.op == "pack_weights" else given.copy_(made))


def _pack(d: Layouts, part: dict[str, Tensor]) -> None:
    codes = _LAYOUTS[d.source].read(d, part["stored_weight"])
    part["weight"].copy_((codes[:, ::2] | codes[:, 1::2] << 4) ^ _flip(d) * 17)
    part["weight_scale"].copy_(_turned(d, part["stored_scale"]))
    if "weight_zero" in part:
        read = _read_zeros if d.weight_format.zero == "int" else _turned
        part["weight_zero"].copy_(read(d, part["stored_zero"]))


def _unpack(d: Layouts, part: dict[str, Tensor]) -> None:
    codes = _codes(part["weight"] ^ _flip(d) * 17).flatten(1)
    part["stored_weight"].copy_(_LAYOUTS[d.source].write(d, codes))
    part["stored_scale"].copy_(_turned(d, part["weight_scale"]))
    if "weight_zero" in part:
        write = _write_zeros if d.weight_format.zero == "int" else _turned
        part["stored_zero"].copy_(write(d, part["weight_zero"]))


_EXACT = PrecisionGuarantee(
    math_precision="integer",
    accumulator="none",
    deterministic=True,
    bit_stable_on_same_hardware=True,
    error_model=ErrorModel(id=EXACT),
    evidence=("tests/families/weights/test_reference.py::test_codes_lie_where_the_library_has_them",),
)


def _facts(d: Layouts) -> Pairs:
    return (("codes", d.weight_format.dtype), ("source", d.source), ("zero", d.weight_format.zero))


CANDIDATES = tuple(
    reference(kind, _EXACT, lambda d: (("scale", d.weight_format.scale_dtype),), _convert, _facts)
    for kind in (PackWeightsDescriptor, UnpackWeightsDescriptor)
)
