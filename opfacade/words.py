"""The functions with which programs and variants of attention are written. docs/programs.md has the table of operations.

    from opfacade.words import Variant, exp, f32, kv_pos, maximum, per_head, q_pos, score, value

Each function accepts nodes of a program or expressions of a variant, and computes the same in both: the same types, the same
results, the same treatment of NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opfacade.plans._attention import expression as scores
from opfacade.plans._attention.variant import Variant as Variant
from opfacade.plans._attention.variant import head as head
from opfacade.plans._attention.variant import kv_head as kv_head
from opfacade.plans._attention.variant import kv_len as kv_len
from opfacade.plans._attention.variant import kv_pos as kv_pos
from opfacade.plans._attention.variant import per_head as per_head
from opfacade.plans._attention.variant import per_key as per_key
from opfacade.plans._attention.variant import per_row as per_row
from opfacade.plans._attention.variant import q_len as q_len
from opfacade.plans._attention.variant import q_pos as q_pos
from opfacade.plans._attention.variant import query as query
from opfacade.plans._attention.variant import score as score
from opfacade.programs import words as _programs
from opfacade.programs.words import constant as constant
from opfacade.programs.words import coord as coord
from opfacade.programs.words import extent as extent
from opfacade.programs.words import read as read
from opfacade.programs.words import round_to as round_to
from opfacade.programs.words import scalar as scalar
from opfacade.programs.words import stage as stage
from opfacade.programs.words import value as value

__all__ = [
    "Variant", "constant", "coord", "extent", "head", "kv_head", "kv_len", "kv_pos", "per_head", "per_key", "per_row", "q_len",
    "q_pos", "query", "read", "round_to", "scalar", "score", "square", "stage", "value",
]  # fmt: skip
__all__ += sorted(_programs.OPERATION)


def _word(name: str) -> Callable[..., Any]:
    of_nodes, op = getattr(_programs, name), _programs.OPERATION[name]

    def call(*args: Any) -> Any:
        of_scores = any(isinstance(arg, scores.Node) for arg in args)
        return scores.apply(op, *args) if of_scores else of_nodes(*args)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = of_nodes.__doc__
    return call


globals().update({name: _word(name) for name in _programs.OPERATION})


def square(x: Tensor) -> Any:
    return x * x


if TYPE_CHECKING:
    from torch import Tensor

    def __getattr__(name: str) -> Any: ...  # the functions in the table of operations
