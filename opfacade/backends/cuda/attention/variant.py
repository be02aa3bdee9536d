"""Variants and packed masks of CUDA kernels: expression trees that csrc/attention/variant.jinja prints.

Kernels address parameters by their index in a stack, so only Python uses their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opfacade.backends.cuda import support
from opfacade.core.candidate import Reason
from opfacade.core.target import Target
from opfacade.plans._attention.expression import SIGNATURES, Apply, Constant, Input, Node, Parameter
from opfacade.plans._attention.scoring import Varied
from opfacade.plans._attention.variant import DISTANCES, Variant, added_ramp, ramp

WIDE = ("f16", "bf16")
_INSTEAD = "Write it without /, sqrt, //, % and log2: multiply by a constant or a parameter instead."
Tree = tuple[Any, ...]


def _from_first_key(distance: Node) -> Tree:
    """The distance of a tile's first key, and the sign of its change from key to key."""
    if not isinstance(distance, Apply):
        return ("input", "kv_base"), "up"
    names = tuple(arg.name for arg in distance.args if isinstance(arg, Input))
    terms = (("input", "kv_base" if name == "kv_pos" else name) for name in names)
    return (distance.op, *terms), "up" if names[0] == "kv_pos" else "down"


# Integer conversions that need one operation per row: VariantKey in kernels/attention/prefill/variant.cuh. None overflows.
_DISTANCES: dict[str, Tree] = {distance.canonical_json(): _from_first_key(distance) for distance in DISTANCES}


def tree(node: Node, variant: Variant, exact: bool) -> Tree:
    """An expression as nested (operation, ...) tuples and numbers. exact: whether it must have the specified bits."""
    if isinstance(node, Constant):
        return (f"constant_{node.type}", node.value)
    if isinstance(node, Input):
        return ("input", node.name)
    if isinstance(node, Parameter):
        return (node.per, variant.parameters(node.per).index(node.name))
    assert isinstance(node, Apply)
    if node.op == "f32" and not exact and node.args[0].canonical_json() in _DISTANCES:
        return ("distance", *_DISTANCES[node.args[0].canonical_json()])
    if not exact and (line := ramp(node)) is not None:
        return ("ramp", tree(line[0], variant, exact), *_DISTANCES[line[1].canonical_json()])
    jumps = node.facts().type != "f32" or node.op in ("f32", "floor")
    args = (tree(arg, variant, exact or jumps or arg.facts().type != "f32") for arg in node.args)
    return (node.op, *args)


def line_of(descriptor: Varied) -> Node | None:
    """The linear term, if the logits are the score plus a term that is linear in the key."""
    variant = descriptor.variant
    return None if variant is None or variant.logits is None else added_ramp(variant.logits)


def constants(descriptor: Varied) -> dict[str, Any]:
    """Additional template constants of a prefill; empty without variant and mask."""
    variant = descriptor.variant
    if variant is None and not descriptor.custom_mask:
        return {}
    found: dict[str, Any] = {"packed": descriptor.custom_mask}
    for part in ("logits", "mask", "query"):
        root = None if variant is None else variant.parts().get(part)
        found[part] = () if root is None or variant is None else tree(root, variant, part != "logits")
    line = line_of(descriptor)
    found["line"] = () if line is None or variant is None else tree(line, variant, exact=False)
    for per in ("head", "row", "key"):
        found[f"{per}_params"] = 0 if variant is None else len(variant.parameters(per))
    return found


def spec_of(template: str, facts: dict[str, bool | int | str], descriptor: Varied, target: Target) -> Any:
    """The JitSpec of `template`, or of its variant with a varied prefix."""
    more = constants(descriptor)
    plain = {name: value for name, value in facts.items() if name not in ("variant", "custom_mask")}
    return support.spec_of(f"{template}_varied" if more else template, support.pairs(**plain, **more), target)


def narrow_reasons(descriptor: Any) -> Iterator[Reason]:
    """Rejects an fp8 cache combined with a variant or mask: these kernels apply the cache's scales in the exponent, which is
    after the variant's expressions."""
    if constants(descriptor):
        yield from support.choice_reason("OPF-S021", "dtype of a KV cache with a variant or a mask", descriptor.kv_dtype, WIDE)


# Operations without branches in machine code, which may be placed between asynchronous products and their wait.
_STRAIGHT = frozenset(SIGNATURES) - {"div", "sqrt", "floordiv", "mod", "log2"}
_MAX_STRAIGHT_NODES = 24


def asynchronous_reasons(descriptor: Varied) -> Iterator[Reason]:
    """Reasons against a kernel with asynchronous products, whose threads do not have the cache slot of a key."""
    if descriptor.variant is None:
        return
    keys, logits = descriptor.variant.parameters("key"), descriptor.variant.logits
    yield from support.limit_reason("OPF-S021", "variant parameters per key", len(keys), 0)
    if logits is not None:
        used = {node.op for _, node in logits.walk() if isinstance(node, Apply)}
        for op in sorted(used - _STRAIGHT):
            yield Reason("OPF-S021", "variant.logits", op, "what needs no branch", _INSTEAD)
        yield from support.limit_reason("OPF-S021", "nodes of variant.logits", logits.facts().nodes, _MAX_STRAIGHT_NODES)


def key_table_bytes(descriptor: Varied, tile_keys: int, tiles: int) -> int:
    """Shared memory bytes of the key parameters of `tiles` tiles."""
    return 0 if descriptor.variant is None else 4 * len(descriptor.variant.parameters("key")) * tile_keys * tiles
