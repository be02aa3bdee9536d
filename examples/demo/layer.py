"""One decoder layer of a model around the attention of a step, and the logits after it: every operation is a plan.

The caller must run each call before it takes the next one, which reads the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from examples.demo.problems import WIDTH, Problems
from examples.demo.settings import Settings
from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.plans.activation import GatedActivationArgs
from opfacade.plans.matmul import MatmulArgs
from opfacade.plans.norm import NormArgs
from opfacade.plans.quantize import QuantizeArgs
from opfacade.plans.rotary import QkvPrepareArgs, rotary_table

if TYPE_CHECKING:
    from torch import Generator, Tensor

Call = tuple[Descriptor[Any], Any]
_TABLE_STEP = 4096  # positions by which the table of angles grows


class Layer:
    """Random weights of a layer, each [outputs, inputs]. before, behind, logits: the calls before attention, after it, and for
    the logits; each is a descriptor and its args."""

    def __init__(self, settings: Settings, problems: Problems, random: Generator) -> None:
        self._settings, self._problems, self._random = settings, problems, random
        self.hidden = problems.hidden
        width = WIDTH * self.hidden
        self.qkv = self._weight(problems.qkv_columns, self.hidden)
        self.o = self._weight(self.hidden, self.hidden)
        self.gate_up = self._weight(2 * width, self.hidden)
        self.down = self._weight(self.hidden, width)
        self.head = self._weight(settings.vocab, self.hidden) * 3
        self.norm = self._weight(1, self.hidden)[0] + 1
        self.head_norm = self._weight(1, settings.head_dim)[0] + 1

    def before(self, x: Tensor, positions: Tensor, tables: Mapping[str, Tensor]) -> Iterator[Call]:
        """Norm of x [rows, hidden]; projections q, k and v; norm and rotation of q and k; append of k and v to their pages."""
        s = self._settings
        normed = self._normed(x, None)
        yield normed
        product = self._product(normed[1].out, self.qkv)
        yield product
        q, k, v = product[1].out.unflatten(-1, (-1, s.head_dim)).split([s.heads, s.kv_heads, s.kv_heads], 1)
        descriptor = self._problems.prepare(x.shape[0], tables["last_page_len"].shape[0])
        weight = self.head_norm
        yield descriptor, QkvPrepareArgs(
            q=q, k=k, v=v, q_weight=weight, k_weight=weight, q_out=_nan_like(q), positions=positions,
            cos_sin_cache=self.table(positions), **tables,
        )  # fmt: skip

    def behind(self, o: Tensor, residual: Tensor) -> Iterator[Call]:
        """Runs the output product, the norm of its sum with the residual, and a gated activation between two products, with its
        rows in e4m3.

        The sum overwrites residual. The out of the last call is the input of the next layer.
        """
        import torch

        product = self._product(o.flatten(1), self.o)
        yield product
        normed = self._normed(product[1].out, residual)
        yield normed
        rows, width = o.shape[0], WIDTH * self.hidden
        product = self._product(normed[1].out, self.gate_up)
        yield product
        active = _nan(rows, width, o)
        gated = GatedActivationArgs(x=product[1].out, out=active)
        yield self._problems.gated(rows), gated
        out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=o.device)
        quantised = QuantizeArgs(x=active, out=out, scale=torch.full((rows,), float("nan"), device=o.device))
        yield self._problems.quantise(rows), quantised
        yield self._product(active, self.down, residual)

    def logits(self, x: Tensor) -> Iterator[Call]:
        """Norm of the rows that draw a token, and their logits."""
        normed = self._normed(x, None)
        yield normed
        yield self._product(normed[1].out, self.head)

    def table(self, positions: Tensor) -> Tensor:
        """A table with cosines and sines for at least `positions` positions."""
        s = self._settings
        return _table(s.head_dim // 2 * 2, -(-(int(positions.max()) + 1) // _TABLE_STEP) * _TABLE_STEP, s.device)

    def _product(self, x: Tensor, weight: Tensor, add: Tensor | None = None) -> Call:
        (rows, k), n = x.shape, weight.shape[0]
        descriptor = self._problems.product(rows, n, k, add is not None)
        return descriptor, MatmulArgs(x=x, weight=weight, add=add, out=_nan(rows, n, x))

    def _normed(self, x: Tensor, residual: Tensor | None) -> Call:
        descriptor = self._problems.norm(x.shape[0], residual is not None)
        return descriptor, NormArgs(x=x, weight=self.norm, residual=residual, out=_nan_like(x))

    def _weight(self, outputs: int, inputs: int) -> Tensor:
        import torch

        drawn = torch.randn(outputs, inputs, generator=self._random, device=self._settings.device)
        size: float = (inputs if outputs > 1 else 100) ** -0.5
        return (drawn * size).to(torch_dtype(self._settings.dtype))


def _nan(rows: int, columns: int, like: Tensor) -> Tensor:
    return like.new_full((rows, columns), float("nan"))


def _nan_like(x: Tensor) -> Tensor:
    import torch

    return torch.full(x.shape, float("nan"), dtype=x.dtype, device=x.device)


@lru_cache(maxsize=1)
def _table(rotary_dim: int, positions: int, device: str) -> Tensor:
    return rotary_table(rotary_dim=rotary_dim, max_positions=positions, device=device)
