"""Variant: a modification of attention as data (a transform of the scores, a mask, a transform of q), and the functions to
write it.

    from opfacade.variant import Variant, f32, kv_pos, per_head, q_pos, score
    Variant(logits=score + per_head("slopes") * f32(kv_pos - q_pos))

Semantics, limits and examples: docs/variants.md; predefined variants: opfacade.plans._attention.variant_examples."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from opfacade.core.model import Model
from opfacade.core.operands import Dim, TensorSpec, index_spec
from opfacade.plans._attention.expression import Apply, Constant, Expression, Input, Node, Parameter, Per, Type, apply

MAX_PARAMETERS = 4
_WRITTEN = 'Write an expression with the names of opfacade.variant, such as score + per_head("slopes") * f32(kv_pos - q_pos).'
_ONLY_IN = {"score": ("logits",), "query": ("query",), "kv_pos": ("logits", "mask")}
_OPERANDS: tuple[tuple[Per, str, str], ...] = (
    ("head", "head_params", "f32"),
    ("row", "row_params", "i32"),
    ("key", "key_params", "i32"),
)


class Variant(Model):
    """Expressions that replace parts of attention; None leaves a part unchanged.

    logits (f32): maps `score`, which is sm_scale * q.k, to the softmax input. lse refers to the result.
    mask (bool): True if a row sees a key; combined with causal and window_left, so it can only hide more.
    query (f32, exact): maps `query`, an element of q, to its replacement, rounded to the dtype of q.

    Parameters are operands of the call, stacked in the order of their names: `head_params [n, num_qo_heads]` f32, `row_params
    [n, total_num_rows]` i32, and `key_params` i32, in the layout of K: `[n, num_total_pages, page_size]` for a paged cache,
    `[n, total_kv_rows]` for ragged rows. Raises DescriptorError, with the path, for an invalid expression."""

    __slots__ = ("_key",)
    _key: ClassVar[str]
    hints: ClassVar[Mapping[str, str]] = MappingProxyType(dict.fromkeys(("logits", "mask", "query"), _WRITTEN))
    logits: Expression | None = Field(
        default=None, description="f32 expression of `score` that replaces the input of the softmax; None: the score."
    )
    mask: Expression | None = Field(
        default=None, description="bool expression: whether a row sees a key, in addition to causal and window; None: all keys."
    )
    query: Expression | None = Field(
        default=None, description="Exact f32 expression of `query`, an element of q, that replaces it; None: q."
    )

    @field_validator("logits", "query")
    @classmethod
    def _number(cls, found: Node | None) -> Node | None:
        return _of_type(found, "f32")

    @field_validator("mask")
    @classmethod
    def _truth(cls, found: Node | None) -> Node | None:
        return _of_type(found, "bool")

    @field_validator("query")
    @classmethod
    def _bitwise(cls, found: Node | None) -> Node | None:
        if found is not None and not found.facts().exact:
            raise ValueError(
                "an exact expression, because the result is rounded to the dtype of q and must be the same on all devices"
            )
        return found

    @model_validator(mode="after")
    def _meaningful(self) -> Variant:
        if not self.parts():
            raise ValueError("at least one of logits, mask and query")
        kinds: dict[str, Per] = {}
        for part, root in self.parts().items():
            for path, node in root.walk():
                _check_place(part, path, node)
                if isinstance(node, Parameter) and kinds.setdefault(node.name, node.per) != node.per:
                    raise ValueError(f"{part}{path}: parameter {node.name} is per {kinds[node.name]} elsewhere")
        for per, _, _ in _OPERANDS:
            if len(self.parameters(per)) > MAX_PARAMETERS:
                raise ValueError(f"at most {MAX_PARAMETERS} parameters per {per}")
        return self

    def __eq__(self, other: object) -> bool:
        """Compares the text of expressions, because `==` between expressions is refused."""
        return self.key == other.key if isinstance(other, Variant) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return ", ".join(f"{name}={root}" for name, root in self.parts().items())

    def parts(self) -> dict[str, Node]:
        """The expressions that are set, by the name of their part."""
        found = {"logits": self.logits, "mask": self.mask, "query": self.query}
        return {name: root for name, root in found.items() if root is not None}

    def parameters(self, per: Per) -> tuple[str, ...]:
        """The names of the parameters, in the order in which they are stacked."""
        nodes = (node for root in self.parts().values() for _, node in root.walk())
        return tuple(sorted({node.name for node in nodes if isinstance(node, Parameter) and node.per == per}))

    @property
    def key(self) -> str:
        """The name in a SKU."""
        try:
            return self._key
        except AttributeError:  # first use: a copy does not have it
            object.__setattr__(self, "_key", f"v{self.digest()[:24]}")
            return self._key

    def operands(self, heads: Dim, rows: Dim, keys: tuple[Dim, ...]) -> dict[str, TensorSpec]:
        """The parameters. keys: the dimensions of K that count tokens; for a paged pool, two."""
        extents = {"head": (heads,), "row": (rows,), "key": keys}
        found = {}
        for per, operand, dtype in _OPERANDS:
            names = self.parameters(per)
            if names:
                shape = (Dim("+".join(names), len(names)), *extents[per])
                paged = (1, 2) if per == "key" and len(keys) == 2 else None
                found[operand] = TensorSpec(shape, dtype, "in", "contiguous", alignment=4, paged=paged)
        return found


def _of_type(found: Node | None, wanted: Type) -> Node | None:
    if found is not None and found.facts().type != wanted:
        raise ValueError(f"an expression of type {wanted}, not {found.facts().type}")
    return found


def _check_place(part: str, path: str, node: Node) -> None:
    name = (
        node.name if isinstance(node, Input) else "key parameter" if isinstance(node, Parameter) and node.per == "key" else ""
    )
    places = ("logits", "mask") if name == "key parameter" else _ONLY_IN.get(name, (part,))
    if part not in places:
        raise ValueError(f"{part}{path}: {name} can be used only in {' and '.join(places)}")


def mask_operands(batch: Dim) -> dict[str, TensorSpec]:
    """A packed mask: see opfacade.plans._attention.scoring.Varied."""
    plus_1 = Dim("batch_size+1", None if batch.size is None else batch.size + 1)
    return {"packed_mask": TensorSpec((Dim("n"),), "u8", "in", "contiguous", alignment=4), "mask_indptr": index_spec(plus_1)}


score, query = Input(name="score"), Input(name="query")
q_pos, kv_pos = Input(name="q_pos"), Input(name="kv_pos")
q_len, kv_len = Input(name="q_len"), Input(name="kv_len")
head, kv_head = Input(name="head"), Input(name="kv_head")

RAMP_KEYS = 128  # number of keys in the largest tile
DISTANCES = (kv_pos, kv_pos - q_pos, q_pos - kv_pos)  # expressions that are linear in the keys of a row


def ramp(node: Node) -> tuple[Node, Node] | None:
    """(factor, distance) if the expression is their product, which is linear in the keys of a row; otherwise None.

    A kernel may compute factor * (first distance of a tile) once per row and add factor * step for each key. This adds one
    rounding, of a product whose distance is up to RAMP_KEYS larger."""
    if not isinstance(node, Apply) or node.op != "mul":
        return None
    for factor, other in (node.args, node.args[::-1]):
        uniform = isinstance(factor, Constant) or (isinstance(factor, Parameter) and factor.per == "head")
        if uniform and isinstance(other, Apply) and other.op == "f32" and any(map(other.args[0].same, DISTANCES)):
            return factor, other.args[0]
    return None


def added_ramp(node: Node) -> Node | None:
    """The ramp if the expression is the score plus a ramp, otherwise None.

    A kernel may leave the scores unchanged and add the ramp to the exponents; `expression_bound` includes the rounding of this
    sum."""
    if not isinstance(node, Apply) or node.op != "add":
        return None
    return next((other for one, other in (node.args, node.args[::-1]) if score.same(one) and ramp(other) is not None), None)


def per_head(name: str) -> Parameter:
    """An f32 for each query head."""
    return Parameter(name=name, per="head")


def per_row(name: str) -> Parameter:
    """An i32 for each row of q."""
    return Parameter(name=name, per="row")


def per_key(name: str) -> Parameter:
    """An i32 for each key."""
    return Parameter(name=name, per="key")


def minimum(a: Node | float, b: Node | float) -> Apply:
    """The smaller value, with -0 below +0; NaN if either is NaN."""
    return apply("minimum", a, b)


def maximum(a: Node | float, b: Node | float) -> Apply:
    """The larger value, with +0 above -0; NaN if either is NaN."""
    return apply("maximum", a, b)


def min_(a: Node | float, b: Node | float) -> Apply:
    """b if b < a, otherwise a; so a if either is NaN."""
    return apply("min", a, b)


def max_(a: Node | float, b: Node | float) -> Apply:
    """b if a < b, otherwise a; so a if either is NaN."""
    return apply("max", a, b)


def select(condition: Node, a: Node | float, b: Node | float) -> Apply:
    """a if the condition holds, otherwise b."""
    return apply("select", condition, a, b)


def equal(a: Node, b: Node | float) -> Apply:
    return apply("eq", a, b)


def not_equal(a: Node, b: Node | float) -> Apply:
    return apply("ne", a, b)


eq, ne = equal, not_equal  # their names in programs


def f32(a: Node) -> Apply:
    """Converts an i32 to the nearest f32."""
    return apply("f32", a)


def i32(a: Node) -> Apply:
    """Truncates an exact f32; saturates at the ends of the range, and converts NaN to 0."""
    return apply("i32", a)


def floor(a: Node) -> Apply:
    return apply("floor", a)


def sqrt(a: Node) -> Apply:
    return apply("sqrt", a)


def exp2(a: Node) -> Apply:
    return apply("exp2", a)


def log2(a: Node) -> Apply:
    return apply("log2", a)


def tanh(a: Node) -> Apply:
    return apply("tanh", a)
