"""The decoder layer of the demo in plain torch and f64, written from the model's formulas, without plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from examples.demo.layer import Layer
from examples.demo.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

_EPS = 1e-6  # of the norms
_BASE = 10000.0  # of the angles
# In units of the dtype's spacing near 1, times the standard deviation of a row's logits: the rms of a row's errors, which
# is 0.7 units for the tried layers, and the largest difference of two logits that count as a tie.
_ERROR, _TIE = 2, 10


def logits(layer: Layer, settings: Settings, x: Tensor, positions: Tensor, cached: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The logits [rows, vocab] for x [rows, hidden]. cached: K and V of each row's request, [tokens, kv_heads, head_dim],
    including the row's own."""
    s, x = settings, x.double()
    qkv = _rms(x, layer.norm) @ layer.qkv.double().T
    q = qkv[:, : s.heads * s.head_dim].reshape(-1, s.heads, s.head_dim)
    q = _rotated(_rms(q, layer.head_norm), positions)
    o = x.new_empty(q.shape)
    for row, (k, v) in enumerate(cached):
        o[row] = _attended(q[row], k.double(), v.double())
    x = x + o.flatten(1) @ layer.o.double().T
    gate, up = (_rms(x, layer.norm) @ layer.gate_up.double().T).chunk(2, dim=-1)
    x = x + (gate * gate.sigmoid() * up) @ layer.down.double().T
    return _rms(x, layer.norm) @ layer.head.double().T


def unequal(found: Tensor, wanted: Tensor) -> int | None:
    """The first row whose logits differ from `wanted` [rows, vocab] by more than the error of a layer in the dtype of `found`,
    or whose largest logit belongs to another token, except for ties."""
    import torch

    step = torch.finfo(found.dtype).eps * wanted.std(1)
    error = (found.double() - wanted).square().mean(1).sqrt()
    behind = wanted.amax(1) - wanted.gather(1, found.argmax(1, keepdim=True))[:, 0]
    right = (error < _ERROR * step) & (behind < _TIE * step)  # false for NaN
    return None if bool(right.all()) else int((~right).nonzero()[0])


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + _EPS).sqrt() * weight.double()


def _rotated(q: Tensor, positions: Tensor) -> Tensor:
    """Rotates q [rows, heads, dim]: elements i and i + half by the angle position * base^(-i / half); an odd last element is
    unchanged."""
    import torch

    half = q.shape[-1] // 2
    angles = positions.double()[:, None] * _BASE ** (-torch.arange(half, device=q.device).double() / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second, rest = q[..., :half], q[..., half : 2 * half], q[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of q [heads, dim] over k, v [tokens, kv_heads, dim]; each KV head serves a group of heads."""
    import torch

    grouped = q.reshape(k.shape[1], -1, q.shape[-1])
    scores = torch.einsum("hgd,thd->hgt", grouped, k) * q.shape[-1] ** -0.5
    return torch.einsum("hgt,thd->hgd", scores.softmax(-1), v).flatten(0, 1)
