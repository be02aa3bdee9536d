"""One layer of a model around the attention of a step: the calls before and behind it, with matrix products of torch between.

A caller runs each call before it takes the next one, which reads the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.demo.problems import WIDTH, Problems
from opfacade.demo.settings import Settings
from opfacade.plans.activation import GatedActivationArgs
from opfacade.plans.norm import NormArgs
from opfacade.plans.quantize import QuantizeArgs
from opfacade.plans.rotary import QkvPrepareArgs, rotary_table

if TYPE_CHECKING:
    from torch import Generator, Tensor

Call = tuple[Descriptor[Any], Any]
_TABLE_STEP = 4096  # positions by which the table of angles grows


class Layer:
    """Random weights of a layer. before, behind: its calls, each a descriptor and its args."""

    def __init__(self, settings: Settings, problems: Problems, random: Generator) -> None:
        self._settings, self._problems, self._random = settings, problems, random
        self.hidden = problems.hidden
        heads = settings.heads + 2 * settings.kv_heads
        self._qkv = self._weight(self.hidden, heads * settings.head_dim)
        self._o = self._weight(self.hidden, self.hidden)
        self._up = self._weight(self.hidden, 2 * WIDTH * self.hidden)
        self._scale = {size: self._weight(1, size)[0] + 1 for size in (self.hidden, settings.head_dim)}

    def before(self, x: Tensor, positions: Tensor, tables: Mapping[str, Tensor]) -> Iterator[Call]:
        """Norm of x [rows, hidden]; norm and rotation of q and k, which go with v to their pages."""
        normed = self._normed(x, None)
        yield normed
        s = self._settings
        found = (normed[1].out @ self._qkv).unflatten(-1, (-1, s.head_dim))
        q, k, v = found.split([s.heads, s.kv_heads, s.kv_heads], 1)
        descriptor = self._problems.prepare(x.shape[0], tables["last_page_len"].shape[0])
        table = _table(s.head_dim // 2 * 2, -(-(int(positions.max()) + 1) // _TABLE_STEP) * _TABLE_STEP, s.device)
        weight = self._scale[s.head_dim]
        yield descriptor, QkvPrepareArgs(
            q=q, k=k, v=v, q_weight=weight, k_weight=weight, q_out=_nan_like(q), positions=positions, cos_sin_cache=table,
            **tables,
        )  # fmt: skip

    def behind(self, o: Tensor, residual: Tensor) -> Iterator[Call]:
        """Norm of the sum with the residual; gated activation; quantisation of its rows to e4m3."""
        import torch

        normed = self._normed(o.flatten(1) @ self._o, residual)
        yield normed
        rows, width = o.shape[0], WIDTH * self.hidden
        gates = normed[1].out @ self._up
        gated = GatedActivationArgs(x=gates, out=_nan_like(gates[:, :width]))
        yield self._problems.gated(rows), gated
        out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=o.device)
        quantised = QuantizeArgs(x=gated.out, out=out, scale=torch.full((rows,), float("nan"), device=o.device))
        yield self._problems.quantise(rows), quantised

    def _normed(self, x: Tensor, residual: Tensor | None) -> Call:
        descriptor = self._problems.norm(x.shape[0], residual is not None)
        return descriptor, NormArgs(x=x, weight=self._scale[self.hidden], residual=residual, out=_nan_like(x))

    def _weight(self, rows: int, columns: int) -> Tensor:
        import torch

        drawn = torch.randn(rows, columns, generator=self._random, device=self._settings.device)
        size: float = (rows if rows > 1 else 100) ** -0.5
        return (drawn * size).to(torch_dtype(self._settings.dtype))


def _nan_like(x: Tensor) -> Tensor:
    import torch

    return torch.full(x.shape, float("nan"), dtype=x.dtype, device=x.device)


@lru_cache(maxsize=1)
def _table(rotary_dim: int, positions: int, device: str) -> Tensor:
    return rotary_table(rotary_dim=rotary_dim, max_positions=positions, device=device)
