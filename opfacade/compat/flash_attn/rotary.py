"""flash-attn's rotary arguments: one table of angles for the K that is appended to the cache, and rotation of Q."""

from __future__ import annotations

from typing import NamedTuple

import torch

from opfacade.compat.dtypes import name_of
from opfacade.compat.refusals import require_tensor, wrong, wrong_shape
from opfacade.core.device_tensors import DerivedTensors


class Rotary(NamedTuple):
    """cos, sin: [positions, rotary_dim / 2]. table: cos and sin, concatenated."""

    cos: torch.Tensor
    sin: torch.Tensor
    table: torch.Tensor
    interleaved: bool

    @property
    def dim(self) -> int:
        return 2 * self.cos.shape[1]


_tables: DerivedTensors[torch.Tensor] = DerivedTensors()


def rotary_of(
    op: str, cos: torch.Tensor | None, sin: torch.Tensor | None, interleaved: bool, device: torch.device
) -> Rotary | None:
    """The angles of a call whose cache is on `device`; None without angles."""
    if cos is None and sin is None:
        return None
    if cos is None or sin is None:
        missing = "rotary_cos" if cos is None else "rotary_sin"
        raise wrong(op, missing, "both rotary_cos and rotary_sin, or neither", "None")
    dims = "seqlen_ro, rotary_dim / 2"
    if require_tensor(op, "rotary_cos", cos, dims) != require_tensor(op, "rotary_sin", sin, dims):
        raise wrong_shape(op, "rotary_sin", f"{list(cos.shape)}, as rotary_cos", list(sin.shape))
    for name, angles in (("rotary_cos", cos), ("rotary_sin", sin)):
        name_of(op, name, angles.dtype)
        if angles.device != device:
            raise wrong(op, name, f"a tensor on {device}, as k_cache", f"one on {angles.device}")
    return Rotary(cos, sin, _table(cos, sin), interleaved)


def _table(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[positions, rotary_dim], cached while cos and sin are unchanged, so layers and steps share it."""
    return _tables.get((cos, sin), lambda: torch.cat([cos, sin], -1))


def check_query(op: str, q: torch.Tensor, like: torch.Tensor) -> None:
    """Raises before the rotation if q [batch, rows, heads, dim] does not match the cache `like` [.., .., .., dim]."""
    name_of(op, "q", q.dtype)
    if q.shape[-1] != like.shape[-1]:
        raise wrong_shape(op, "q", f"[batch_size, seqlen, nheads, headdim={like.shape[-1]}]", list(q.shape))
    if q.device != like.device:
        raise wrong(op, "q", f"a tensor on {like.device}, as k_cache", f"one on {q.device}")


def check_positions(op: str, rotary: Rotary, lengths: int | torch.Tensor, rows: int) -> None:
    """Raises if a position of the `rows` rows after a length has no angles. Lengths in device memory are not checked; rows
    beyond the table use its last angles, as in the append."""
    known = rotary.cos.shape[0]
    if isinstance(lengths, torch.Tensor):
        is_read = lengths.device.type == "cpu" and lengths.numel()
        least, most = (int(x) for x in lengths.aminmax()) if is_read else (0, 0)
    else:
        least = most = lengths
    if rows and not 0 <= least <= most <= known - rows:
        expected = f"lengths that leave {rows} more positions of the {known} in rotary_cos"
        raise wrong(op, "cache_seqlens", expected, least if least < 0 else most)


def rotated(q: torch.Tensor, rotary: Rotary, at: torch.Tensor) -> torch.Tensor:
    """q [batch, rows, heads, dim] with its first rotary_dim elements rotated by the angles of `at` [batch, rows], in f32."""
    at = at.clamp(0, max(0, rotary.cos.shape[0] - 1))  # an out-of-range index would destroy the CUDA context
    cos, sin = (x[at].float()[..., None, :] for x in (rotary.cos, rotary.sin))
    turned, rest = q[..., : rotary.dim].float(), q[..., rotary.dim :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if rotary.interleaved else turned.chunk(2, -1)
    pair = (a * cos - b * sin, b * cos + a * sin)
    done = torch.stack(pair, -1).flatten(-2) if rotary.interleaved else torch.cat(pair, -1)
    return torch.cat([done.to(q.dtype), rest], -1)
