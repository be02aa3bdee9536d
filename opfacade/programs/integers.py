"""Integer operations on int64 tensors that hold any integer type: arithmetic is modulo 2^bits, and a u64 is held as its bit
pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from opfacade.programs.ball import aligned
from opfacade.programs.types import bits_of, range_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def in_range(value: Tensor, type: str) -> Tensor:
    """Wraps values modulo 2^bits into the range of a type."""
    bits = bits_of(type)
    if bits == 64:
        return value
    low: Tensor = value & (2**bits - 1)
    return low if type[0] == "u" else (low ^ (1 << (bits - 1))) - (1 << (bits - 1))


def wrapped(op: str, type: str, args: list[Tensor]) -> Tensor:
    if op in ("shl", "shr"):
        return in_range(_shifted(op, type, *args), type)
    if type == "u64" and op in _UNSIGNED:
        return _UNSIGNED[op](*args)
    return in_range(OPERATIONS[op](*args), type)


def saturated(value: Tensor, type: str) -> Tensor:
    """Truncates floats toward zero; out of range they saturate, and NaN becomes 0."""
    import torch

    least, most = range_of(type)
    wide = value.double().trunc()
    above, below = wide >= float(most + 1), wide < float(least)
    inner = wide.masked_fill(above | below | wide.isnan(), 0.0)
    if type == "u64":
        high = inner >= 2.0**63
        found = torch.where(
            high,
            (inner - 2.0**63).masked_fill(~high, 0).long() + torch.iinfo(torch.int64).min,
            inner.masked_fill(high, 0).long(),
        )
    else:
        found = inner.long()
    top = most - 2**64 if type == "u64" else most
    return found.masked_fill(above, top).masked_fill(below, least)


def as_float(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A u64 as the nearest float."""
    import torch

    half = (value >> 1 & torch.iinfo(torch.int64).max) | (value & 1)  # sticky bit for correct rounding
    return torch.where(value < 0, half.to(dtype) * 2, value.to(dtype))


def reinterpreted(value: Tensor, type: str) -> Tensor:
    """The bit pattern of an f32 or f64 as a signed integer, or the inverse; all NaNs have the same pattern."""
    import torch

    narrow = type in ("f32", "i32")
    if value.dtype.is_floating_point:
        quiet = 0x7FC00000 if narrow else 0x7FF8000000000000
        return value.view(torch.int32 if narrow else torch.int64).long().masked_fill(value.isnan(), quiet)
    return value.int().view(torch.float32) if narrow else value.view(torch.float64)


def compared(op: str, a: Tensor, b: Tensor) -> Tensor:
    """A comparison of u64 values, which are held as bit patterns."""
    return OPERATIONS[op](_ordered(a), _ordered(b))


def _ordered(a: Tensor) -> Tensor:
    import torch

    return a ^ torch.iinfo(torch.int64).min


def _shifted(op: str, type: str, a: Tensor, by: Tensor) -> Tensor:
    """A shift. A count outside 0 to width - 1 gives 0, or for a signed right shift the sign."""
    import torch

    bits = bits_of(type)
    over = (by < 0) | (by >= bits)
    count = by.masked_fill(over, 0)
    if op == "shl":
        return torch.where(over, torch.zeros_like(a), a << count)
    if type == "u64":
        logical = torch.where(count == 0, a, (a >> 1 & torch.iinfo(torch.int64).max) >> (count - 1).clamp(min=0))
        return torch.where(over, torch.zeros_like(a), logical)
    return torch.where(over, -(a < 0).long(), a >> count)


def _quotient(a: Tensor, b: Tensor, mode: str) -> Tensor:
    """A quotient rounded down or toward zero. Division by 0 gives 0, and the minimum divided by -1 gives the minimum."""
    import torch

    none, minus = b == 0, b == -1
    found = torch.div(a, b.masked_fill(none | minus, 1), rounding_mode=mode)
    return torch.where(minus, -a, found).masked_fill(none, 0)


def _unsigned_quotient(a: Tensor, b: Tensor) -> Tensor:
    import torch

    large = b < 0
    safe = b.masked_fill(large | (b == 0), 1)
    half = (a >> 1) & torch.iinfo(torch.int64).max
    estimate = torch.div(half, safe, rounding_mode="trunc") << 1
    rest = a - estimate * safe
    estimate = estimate + (_ordered(rest) >= _ordered(safe)).long()
    found = torch.where(large, (_ordered(a) >= _ordered(b)).long(), estimate)
    return found.masked_fill(b == 0, 0)


def _rest(a: Tensor, b: Tensor, quotient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return (a - quotient(a, b) * b).masked_fill(b == 0, 0)


def _down(a: Tensor, b: Tensor) -> Tensor:
    return _quotient(a, b, "floor")


def _to_zero(a: Tensor, b: Tensor) -> Tensor:
    return _quotient(a, b, "trunc")


def _picked(a: Tensor, b: Tensor, first: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    import torch

    return torch.where(first(a, b), a, b)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": lambda a: a.abs(),
    "sign": lambda a: a.sign(),
    **dict.fromkeys(("min", "minimum"), lambda a, b: a.minimum(b)),
    **dict.fromkeys(("max", "maximum"), lambda a, b: a.maximum(b)),
    "floordiv": _down,
    "mod": lambda a, b: _rest(a, b, _down),
    "truncdiv": _to_zero,
    "rem": lambda a, b: _rest(a, b, _to_zero),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}

_UNSIGNED: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("min", "minimum"), lambda a, b: _picked(a, b, lambda x, y: _ordered(x) <= _ordered(y))),
    **dict.fromkeys(("max", "maximum"), lambda a, b: _picked(a, b, lambda x, y: _ordered(x) >= _ordered(y))),
    **dict.fromkeys(("floordiv", "truncdiv"), _unsigned_quotient),
    **dict.fromkeys(("mod", "rem"), lambda a, b: _rest(a, b, _unsigned_quotient)),
    "abs": lambda a: a,
    "sign": lambda a: (a != 0).long(),
}

_M = (0xD2511F53, 0xCD9E8D57)
_W = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(seed: Tensor, offset: Tensor, index: Tensor, stream: Tensor) -> Tensor:
    """Word index % 4 of Philox4x32-10 with the key `seed` and the counter (offset + index / 4, stream), as u32."""
    import torch

    seed, offset, index, stream = aligned(seed, offset, index, stream)
    counter = offset + ((index >> 2) & (2**62 - 1))
    words = [counter & _MASK, counter >> 32 & _MASK, stream & _MASK, stream >> 32 & _MASK]
    keys = [seed & _MASK, seed >> 32 & _MASK]
    for _ in range(10):
        first, second = (_product(words[i], m) for i, m in zip((0, 2), _M, strict=True))
        words = [second[0] ^ words[1] ^ keys[0], second[1], first[0] ^ words[3] ^ keys[1], first[1]]
        keys = [(key + w) & _MASK for key, w in zip(keys, _W, strict=True)]
    found: Tensor = torch.stack(words).gather(0, (index & 3)[None])[0]
    return found


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product of 32-bit numbers."""
    whole = a * b  # modulo 2^64
    return whole >> 32 & _MASK, whole & _MASK
