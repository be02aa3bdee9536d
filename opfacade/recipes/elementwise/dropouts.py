"""Dropout of elements or whole channels. The remaining elements are scaled to preserve the mean."""

from __future__ import annotations

import math
from typing import Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant, coord, extent
from opfacade.recipes._draft import Draft
from opfacade.recipes._noise import Key, Noise
from opfacade.recipes._pointwise import floats
from opfacade.recipes._recipe import add
from opfacade.recipes._tensors import Shaped, refuse

LEAST = -1.7580993408473766  # selu's limit for large negative inputs
NOTE = "`key`, `seed`, `offset` and `stream` as in `uniform`; an element is kept if its uniform number is at least p"
CHANNELS = f"{NOTE}; one number per channel"


def _kept(draft: Draft, p: float, key: Key, index: Node | None) -> Node:
    """Whether an element is kept. The comparison is exact, so a backward pass draws the same mask."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
        refuse("p", "0 to 1", p)
    return w.ge(Noise(draft, key, index).uniform("f32"), draft.number("p", p, "f32"))


def _channel(input: Shaped, spatial: int) -> Node:
    """Flat index of the element's channel: n * C + c, or c if there is no batch axis."""
    if input.rank not in (spatial + 1, spatial + 2):
        refuse("input", f"{spatial + 1} or {spatial + 2} axes", input.shape)
    return w.u64(coord(0) * extent(1) + coord(1) if input.rank == spatial + 2 else coord(0))


def _scaled(draft: Draft, x: Node, kept: Node, p: float) -> Node:
    scale = draft.number("scale", 0.0 if p == 1 else 1 / (1 - p), x.type)
    return w.select(kept, x * scale, constant(0.0, x.type))


def _alpha(draft: Draft, x: Node, kept: Node, p: float) -> Node:
    """Preserves the mean and variance of selu's output."""
    scale = 0.0 if p == 1 else 1 / math.sqrt((1 - p) * (1 + p * LEAST**2))
    a, b = draft.number("scale", scale, x.type), draft.number("shift", -scale * LEAST * p, x.type)
    return w.select(kept, x, constant(LEAST, x.type)) * a + b


def _put(names: str, form: Any, spatial: int | None, note: str) -> None:
    """spatial: the number of axes after the channel axis; 0: all axes after the second. None: each element has its own draw."""

    def make(
        input: Shaped,
        p: float = 0.5,
        training: bool = True,
        key: Shaped | None = None,
        seed: int = 0,
        offset: int = 0,
        stream: int = 0,
    ) -> MapDescriptor:
        draft = Draft(input.shape)
        x = floats(draft.element("input", input))
        if not training:
            return draft.map(x, dtype=input.dtype)
        axes = max(input.rank - 2, 0) if spatial == 0 else spatial
        index = None if axes is None else _channel(input, axes)
        kept = _kept(draft, p, Key(key, seed, offset, stream), index)
        return draft.map(form(draft, x, kept, p), dtype=input.dtype)

    add(names, make, note)


_put("nn.functional.dropout", _scaled, None, NOTE)
_put("nn.functional.dropout1d", _scaled, 1, CHANNELS)
_put("nn.functional.dropout2d", _scaled, 2, CHANNELS)
_put("nn.functional.dropout3d", _scaled, 3, CHANNELS)
_put("nn.functional.alpha_dropout", _alpha, None, NOTE)
_put("nn.functional.feature_alpha_dropout", _alpha, 0, CHANNELS)
