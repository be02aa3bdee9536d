"""Tables of cosines and sines with the frequency scalings of models, computed in f64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from opfacade.base.did_you_mean import nearest
from opfacade.base.short_repr import shown
from opfacade.core.dtypes import torch_dtype
from opfacade.core.model import INT32_MAX, as_index
from opfacade.errors import ArgumentError, Issue, from_issues

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Kind = Literal["default", "linear", "ntk", "llama3", "yarn", "longrope"]
Table = Literal["f32", "bf16", "f16"]


@dataclass(frozen=True, slots=True)
class _Scaling:
    """The parameters of a scaling, named as transformers' rope_parameters are."""

    rotary_dim: int
    base: float
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    short_factor: Sequence[float] | None = None
    long_factor: Sequence[float] | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    seq_len: int | None = None

    def need(self, name: str) -> Any:
        """A parameter that the kind requires."""
        given = getattr(self, name)
        if given is None:
            raise _refused(name, "a value, because this kind requires it", "None")
        return given

    def ratio(self) -> float:
        """factor, or by default the quotient of the two lengths."""
        if self.factor is not None:
            return self.factor
        return float(self.need("max_position_embeddings") / self.need("original_max_position_embeddings"))


def rotary_table(
    kind: Kind = "default", *, rotary_dim: int, max_positions: int, base: float = 10000.0,
    dtype: Table = "f32", device: str | torch.device = "cpu", **scaling: object,
) -> Tensor:  # fmt: skip
    """cos_sin_cache [max_positions, rotary_dim] for a scaling: rotary_dim / 2 cosines, then as many sines, for each position.

    scaling: as in transformers' rope_parameters. linear: factor. ntk: factor, max_position_embeddings, seq_len (default
    max_positions). llama3: factor, original_max_position_embeddings, low_freq_factor, high_freq_factor. yarn: factor,
    original_max_position_embeddings, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor, truncate. longrope:
    short_factor and long_factor (a number above 0 for each pair), original_max_position_embeddings, factor, attention_factor,
    short_mscale and long_mscale (only together; they replace attention_factor as the factor of cosines and sines), seq_len
    (default max_positions; above original_max_position_embeddings, long_factor is used). If factor may be None, the default is
    max_position_embeddings / original_max_position_embeddings. A parameter that is None counts as not given; seq_len may be
    given with any kind, and parameters of other kinds are refused. Angles are f64 products, so the cosines and sines of all
    positions are correct to the last digit of dtype; all are finite. Raises ArgumentError."""
    import torch

    max_positions = _whole("max_positions", max_positions, 0)
    number, place = _table_dtype(dtype), _device(device)
    frequencies, attention = rotary_frequencies(kind, rotary_dim=rotary_dim, base=base, **{"seq_len": max_positions} | scaling)
    try:
        angle = torch.arange(max_positions, dtype=torch.float64)[:, None] * frequencies
        found = (torch.cat([angle.cos(), angle.sin()], -1) * attention).to(number)
    except RuntimeError:
        raise _refused("max_positions", "a number of rows that fits in the host's memory", str(max_positions)) from None
    if not bool(found.isfinite().all()):
        raise _not_finite(f"values whose cosines and sines are finite in {dtype}", base, scaling)
    return found.to(place)


def rotary_frequencies(
    kind: Kind = "default", *, rotary_dim: int, base: float = 10000.0, **scaling: object
) -> tuple[Tensor, float]:
    """The angle per position of each pair in radians, f64 [rotary_dim / 2] on the CPU, and the common factor of cosines and
    sines.

    The parameters are as in rotary_table. Raises ArgumentError."""
    if not isinstance(kind, str) or kind not in _FREQUENCIES:
        raise _refused("kind", f"one of {', '.join(get_args(Kind))}", str(kind))
    rotary_dim = _whole("rotary_dim", rotary_dim, 2, step=2)
    numbers = {name: _number(name, value) for name, value in _given(kind, scaling).items() if name not in _NO_NUMBERS}
    given = _Scaling(rotary_dim, _number("base", base), **_given(kind, scaling) | numbers)
    try:
        frequencies, attention = _FREQUENCIES[kind](given)
    except (OverflowError, ZeroDivisionError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise _not_finite(f"that the formula of {kind} takes", base, scaling) from None
    if not bool(frequencies.isfinite().all()) or not math.isfinite(attention):
        raise _not_finite("whose frequencies are finite", base, scaling)
    return frequencies, attention


_LENGTHS = ("original_max_position_embeddings", "max_position_embeddings")
_TAKES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (),
        "linear": ("factor",),
        "ntk": ("factor", "max_position_embeddings"),
        "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
        "yarn": (
            "factor", *_LENGTHS, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate",
        ),
        "longrope": ("factor", *_LENGTHS, "attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale"),
    }
)  # fmt: skip
_NO_NUMBERS = ("truncate", "short_factor", "long_factor")
_POSITIVE = ("base", "factor", *_LENGTHS, "beta_fast", "beta_slow")


def _given(kind: str, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters other than None. Parameters that the kind would ignore are refused."""
    takes, known = (*_TAKES[kind], "seq_len"), {name for names in _TAKES.values() for name in names}
    for name in sorted(scaling):
        if name not in takes and (scaling[name] is not None or name not in known):
            other = "that of another kind" if name in known else "no parameter of this name"
            raise _refused(name, f"a parameter of {kind} ({', '.join(takes)})", other)
    if not isinstance(scaling.get("truncate", True), bool):
        raise _refused("truncate", "True or False", shown(scaling["truncate"]))
    return {name: value for name, value in scaling.items() if value is not None}


def _table_dtype(dtype: str) -> torch.dtype:
    """Checks that dtype is a float type, because an integer type would truncate cosines."""
    if not isinstance(dtype, str) or dtype not in get_args(Table):
        meant = nearest(str(dtype), get_args(Table))
        hint = "" if meant is None else f"Use {meant!r}."
        raise _refused("dtype", "'f32', 'bf16' or 'f16'", shown(dtype), hint)
    return torch_dtype(dtype)


def _device(device: torch.device | str) -> torch.device:
    """A device, checked by creating a tensor on it."""
    import torch

    try:
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, TypeError, ValueError):  # raised by torch without CUDA
        raise _refused("device", "a device that torch supports on this machine", shown(device)) from None


def _whole(name: str, value: object, least: int, step: int = 1) -> int:
    """Checks that a value is a Python or numpy integer in range."""
    found = as_index(value)
    if type(found) is not int or not least <= found <= INT32_MAX or found % step:
        even = "an even number, " if step == 2 else ""
        raise _refused(name, f"{even}{least} or more, and at most {INT32_MAX}", shown(value))
    return found


def _number(name: str, value: object) -> float:
    """Checks that a number is finite, and positive if it must be: others would give NaN, or fail in torch."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (name in _POSITIVE and number <= 0):
        raise _refused(name, "a finite number above 0" if name in _POSITIVE else "a finite number", shown(value))
    return number


def _plain(given: _Scaling, base: float | None = None) -> Tensor:
    import torch

    exponent = torch.arange(0, given.rotary_dim, 2, dtype=torch.float64) / given.rotary_dim
    return (given.base if base is None else base) ** -exponent


def _default(given: _Scaling) -> tuple[Tensor, float]:
    return _plain(given), 1.0


def _linear(given: _Scaling) -> tuple[Tensor, float]:
    return _plain(given) / given.need("factor"), 1.0


def _ntk(given: _Scaling) -> tuple[Tensor, float]:
    """A larger base for sequences that are longer than in training."""
    factor, known, dim = given.need("factor"), given.need("max_position_embeddings"), given.rotary_dim
    if dim < 4:
        raise _refused("rotary_dim", "4 or more with kind ntk", str(dim))
    length = max(given.seq_len or known, known)
    return _plain(given, given.base * (factor * length / known - (factor - 1)) ** (dim / (dim - 2))), 1.0


def _llama3(given: _Scaling) -> tuple[Tensor, float]:
    """Low frequencies are divided by the factor, high frequencies are unchanged, and frequencies in between are
    interpolated."""
    plain, factor = _plain(given), given.need("factor")
    if given.low_freq_factor == given.high_freq_factor:
        raise _refused("high_freq_factor", "another number than low_freq_factor", str(given.high_freq_factor))
    turns = given.need("original_max_position_embeddings") * plain / (2 * math.pi)
    share = ((turns - given.low_freq_factor) / (given.high_freq_factor - given.low_freq_factor)).clamp(0, 1)
    return (1 - share) * plain / factor + share * plain, 1.0


def _yarn(given: _Scaling) -> tuple[Tensor, float]:
    """Low frequencies are divided by the factor, with a linear ramp between two numbers of rotations."""
    import torch

    plain, factor, dim = _plain(given), given.ratio(), given.rotary_dim
    if given.base == 1:
        raise _refused("base", "a number other than 1 with kind yarn", str(given.base))

    def pair_of(turns: float) -> float:
        length = given.need("original_max_position_embeddings")
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(given.base))

    low, high = pair_of(given.beta_fast), pair_of(given.beta_slow)
    low, high = (math.floor(low), math.ceil(high)) if given.truncate else (low, high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp), _yarn_attention(given, factor)


def _yarn_attention(given: _Scaling, factor: float) -> float:
    def grown(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    if given.attention_factor is not None:
        return given.attention_factor
    if given.mscale and given.mscale_all_dim:
        below = grown(given.mscale_all_dim)
        if below == 0:
            expected = "another number: 1 + 0.1 mscale_all_dim log(factor) is 0"
            raise _refused("mscale_all_dim", expected, str(given.mscale_all_dim))
        return grown(given.mscale) / below
    return grown(1.0)


def _longrope(given: _Scaling) -> tuple[Tensor, float]:
    """One divisor per pair, from the list for long or for short sequences."""
    import torch

    known = given.need("original_max_position_embeddings")
    name = "long_factor" if (given.seq_len or 0) > known else "short_factor"
    try:
        each = torch.as_tensor(given.need(name), dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise _refused(name, "numbers, one for each pair", shown(given.need(name))) from None
    if each.shape != (given.rotary_dim // 2,):
        raise _refused(name, f"{given.rotary_dim // 2} numbers, one for each pair", f"{each.numel()}")
    if not bool((each.isfinite() & (each > 0)).all()):
        raise _refused(name, "finite numbers above 0", shown(given.need(name)))
    if (scaled := _mscale(given, name.removesuffix("_factor"))) is not None:
        return _plain(given) / each, scaled
    factor, attention = given.ratio(), given.attention_factor
    if attention is None:
        if factor > 1 and known <= 1:
            raise _refused("original_max_position_embeddings", "2 or more", str(known))
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(known))
    return _plain(given) / each, attention


def _mscale(given: _Scaling, length: str) -> float | None:
    """The factor of cosines and sines for short or long sequences, as in PhiMoE; None if the model has none."""
    if given.short_mscale is None and given.long_mscale is None:
        return None
    if given.attention_factor is not None:
        raise _refused("attention_factor", "None with short_mscale and long_mscale", str(given.attention_factor))
    each = {"short": given.need("short_mscale"), "long": given.need("long_mscale")}
    return float(each[length])


_FREQUENCIES: Mapping[str, Callable[[_Scaling], tuple[Tensor, float]]] = MappingProxyType(
    {"default": _default, "linear": _linear, "ntk": _ntk, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
)


def _not_finite(expected: str, base: object, scaling: Mapping[str, Any]) -> Exception:
    told = ", ".join(f"{name}={shown(value)}" for name, value in {"base": base, **scaling}.items())
    return _refused("scaling", f"parameters {expected}", told)


def _refused(argument: str, expected: str, got: str, hint: str = "") -> Exception:
    issue = Issue("OPF-A047", argument, expected, got, hint, kind="ArgumentError")
    return from_issues("rotary_table", "make", [issue])
