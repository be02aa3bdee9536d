"""How a variant and a packed mask get into a CUDA kernel: expressions as trees that csrc/attention/variant.jinja prints.

Names of parameters stay here: a kernel knows them by their place in a stack.
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
Tree = tuple[Any, ...]


def _from_first_key(distance: Node) -> Tree:
    """A distance of the first key of a tile, and which way the others go on from there."""
    if not isinstance(distance, Apply):
        return ("input", "kv_base"), "up"
    names = tuple(arg.name for arg in distance.args if isinstance(arg, Input))
    terms = (("input", "kv_base" if name == "kv_pos" else name) for name in names)
    return (distance.op, *terms), "up" if names[0] == "kv_pos" else "down"


# Conversions that come down to one a row: see VariantKey in kernels/attention/prefill/variant.cuh. None of them wraps.
_DISTANCES: dict[Node, Tree] = {distance: _from_first_key(distance) for distance in DISTANCES}


def tree(node: Node, variant: Variant, exact: bool) -> Tree:
    """An expression as words and numbers. exact: whether it must have the bits that its rules say."""
    if isinstance(node, Constant):
        return (f"constant_{node.type}", node.value)
    if isinstance(node, Input):
        return ("input", node.name)
    if isinstance(node, Parameter):
        return (node.per, variant.parameters(node.per).index(node.name))
    assert isinstance(node, Apply)
    if node.op == "f32" and not exact and node.args[0] in _DISTANCES:
        return ("distance", *_DISTANCES[node.args[0]])
    if not exact and (line := ramp(node)) is not None:
        return ("ramp", tree(line[0], variant, exact), *_DISTANCES[line[1]])
    jumps = node.facts().type != "f32" or node.op in ("f32", "floor")
    args = (tree(arg, variant, exact or jumps or arg.facts().type != "f32") for arg in node.args)
    return (node.op, *args)


def line_of(descriptor: Varied) -> Node | None:
    """The ramp of logits that are the score and a ramp."""
    variant = descriptor.variant
    return None if variant is None or variant.logits is None else added_ramp(variant.logits)


def constants(descriptor: Varied) -> dict[str, Any]:
    """What the templates of a prefill are filled with besides; nothing where there is neither variant nor mask."""
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
    """What is compiled: the template itself, or the one of the same name that varies it."""
    more = constants(descriptor)
    plain = {name: value for name, value in facts.items() if name not in ("variant", "custom_mask")}
    return support.spec_of(f"{template}_varied" if more else template, support.pairs(**plain, **more), target)


def narrow_reasons(descriptor: Any) -> Iterator[Reason]:
    """Of kernels that bring factors of an fp8 cache into the exponents, where no expression sees them."""
    if constants(descriptor):
        yield from support.choice_reason("OPF-S021", "dtype of a KV cache with a variant or a mask", descriptor.kv_dtype, WIDE)


# What has no branch in machine code, so that it can stand between asynchronous products and the wait for them.
_STRAIGHT = frozenset(SIGNATURES) - {"div", "sqrt", "floordiv", "mod", "log2"}
_MAX_STRAIGHT_NODES = 24


def asynchronous_reasons(descriptor: Varied) -> Iterator[Reason]:
    """Of a kernel whose threads do not know where in the cache a key lies, and whose products go on beside the scores."""
    if descriptor.variant is None:
        return
    keys, logits = descriptor.variant.parameters("key"), descriptor.variant.logits
    yield from support.limit_reason("OPF-S021", "variant parameters per key", len(keys), 0)
    if logits is not None:
        used = {node.op for _, node in logits.walk() if isinstance(node, Apply)}
        for op in sorted(used - _STRAIGHT):
            yield Reason("OPF-S021", "variant.logits", op, "what needs no branch")
        yield from support.limit_reason("OPF-S021", "nodes of variant.logits", logits.facts().nodes, _MAX_STRAIGHT_NODES)


def key_table_bytes(descriptor: Varied, tile_keys: int, tiles: int) -> int:
    """Parameters of the keys of some tiles in shared memory."""
    return 0 if descriptor.variant is None else 4 * len(descriptor.variant.parameters("key")) * tile_keys * tiles
