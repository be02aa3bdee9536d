"""Programs as JSON: `lets`, the shared subexpressions, and a tree for each value.

The text of a graph is unique: every subexpression that is used twice and is not a leaf is a let, in order of first use. So the
digest does not depend on how the program was written.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opfacade.programs import expression
from opfacade.programs.expression import Node, ordered
from opfacade.programs.fault import Fault

SCHEMA_VERSION = 2
MAX_NODES, MAX_LETS, MAX_DEPTH = 256, 32, 64
_FIELDS = {
    "constant": ("type", "value"),
    "input": ("name", "type"),
    "scalar": ("name", "type"),
    "coord": ("axis",),
    "extent": ("axis",),
    "stage": ("index", "type", "part"),
    "shared": ("index",),
    "read": ("name", "type", "at", "outside"),
    "apply": ("op", "args"),
}


class Text(NamedTuple):
    """The JSON of some values: `lets` and a tree for each."""

    lets: list[dict[str, Any]]
    values: list[dict[str, Any]]


def text_of(values: Sequence[Node]) -> Text:
    """The unique text of a graph. Raises Fault beyond the limits."""
    place = _shared(values)
    lets = [_tree(node, {other: at for other, at in place.items() if at < index}) for node, index in place.items()]
    return Text(lets, [_tree(node, place) for node in values])


def check_limits(values: Mapping[str, Node]) -> None:
    """Raises Fault if values exceed the limits, with the path of the value at which the total does.

    values: by the path of their field.
    """
    roots = list(values.values())
    try:
        _shared(roots)
    except Fault:
        for count, path in enumerate(values, 1):
            try:
                _shared(roots[:count])
            except Fault as fault:
                raise fault.under(f".{path}") from None
        raise


def _shared(values: Sequence[Node]) -> dict[Node, int]:
    """The lets of a graph and the index of each. Raises Fault beyond the limits."""
    nodes = ordered(values)
    if len(nodes) > MAX_NODES:
        raise Fault("", f"at most {MAX_NODES} nodes", f"{len(nodes)} nodes")
    uses = Counter(arg for node in nodes for arg in node.args) + Counter(values)
    shared = [node for node in nodes if uses[node] > 1 and node.args]
    if len(shared) > MAX_LETS:
        raise Fault("", f"at most {MAX_LETS} shared parts", f"{len(shared)} of them")
    place = {node: index for index, node in enumerate(shared)}
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((1 if arg in place else depth[arg] for arg in node.args), default=0)
    deepest = max(depth.values(), default=0)
    if deepest > MAX_DEPTH:
        raise Fault("", f"a depth of at most {MAX_DEPTH} nodes", f"{deepest}")
    return place


def digest(values: Mapping[str, Node]) -> str:
    """SHA-256 of the canonical text of named values, in hex: the same in every process and on every machine."""
    text = text_of(list(values.values()))
    content = {"schema_version": SCHEMA_VERSION, "lets": text.lets, "values": dict(zip(values, text.values, strict=True))}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _tree(node: Node, place: Mapping[Node, int]) -> dict[str, Any]:
    if node in place:
        return {"kind": "shared", "index": place[node]}
    args = [_tree(arg, place) for arg in node.args]
    if node.kind == "apply":
        return {"kind": "apply", "op": node.op, "args": args}
    if node.kind == "read":
        name, outside = node.data
        at, fill = (args[:-1], {"fill": args[-1]}) if outside == "fill" else (args, outside)
        return {"kind": "read", "name": name, "type": node.type, "at": at, "outside": fill}
    if node.kind == "stage":
        index, part = node.data
        return {"kind": "stage", "index": index, "type": node.type, "part": part}
    first = _FIELDS[node.kind][0] if node.kind != "constant" else "value"
    typed = {"type": node.type} if "type" in _FIELDS[node.kind] else {}
    return {"kind": node.kind, first: node.data, **typed}


def lets_from(given: object, path: str = ".lets") -> list[Node]:
    """The shared subexpressions of a text; each may use earlier ones. Raises Fault."""
    if not isinstance(given, (list, tuple)):
        raise Fault(path, "a list of expressions", given)
    if len(given) > MAX_LETS:
        raise Fault(path, f"at most {MAX_LETS} shared parts", f"{len(given)} of them")
    found: list[Node] = []
    for index, item in enumerate(given):
        found.append(node_from(item, found, f"{path}.{index}"))
    return found


def node_from(given: object, lets: Sequence[Node] = (), path: str = "", depth: int = 1) -> Node:
    """The node of a text; a node is returned unchanged. lets: the shared subexpressions. Raises Fault with the path of the
    error."""
    if isinstance(given, Node):
        return given
    if depth > MAX_DEPTH:
        raise Fault(path, f"a depth of at most {MAX_DEPTH} nodes", "more")
    if not isinstance(given, Mapping):
        raise Fault(path, "an expression", given)
    kind = given.get("kind")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise Fault(f"{path}.kind", f"one of {', '.join(_FIELDS)}", kind)
    for name in (*fields, *given):
        if name not in given:
            raise Fault(f"{path}.{name}", "a value", "nothing")
        if name not in fields and name != "kind":
            raise Fault(f"{path}.{name}", "no field with this name", given[name])
    try:
        return _made(given, lets, path, depth)
    except _Placed as placed:
        raise placed.fault from None
    except Fault as fault:
        raise fault.under(path) from None


class _Placed(Exception):
    """A fault whose path is complete."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _inner(given: object, lets: Sequence[Node], path: str, depth: int) -> Node:
    try:
        return node_from(given, lets, path, depth + 1)
    except Fault as fault:
        raise _Placed(fault) from None


def _several(given: object, lets: Sequence[Node], path: str, depth: int) -> Iterable[Node]:
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= expression.MAX_AXES:
        raise _Placed(Fault(path, f"a list of 1 to {expression.MAX_AXES} expressions", given))
    return [_inner(item, lets, f"{path}.{index}", depth) for index, item in enumerate(given)]


def _made(given: Mapping[str, Any], lets: Sequence[Node], path: str, depth: int) -> Node:
    kind = given["kind"]
    if kind == "apply":
        if not isinstance(given["op"], str):
            raise Fault(".op", "a known operation", given["op"])
        return expression.apply(given["op"], *_several(given["args"], lets, f"{path}.args", depth))
    if kind == "shared":
        index = given["index"]
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(lets):
            raise Fault(".index", f"one of the {len(lets)} earlier shared parts", index)
        return lets[index]
    if kind == "read":
        at, outside = _several(given["at"], lets, f"{path}.at", depth), given["outside"]
        if isinstance(outside, Mapping):
            if set(outside) != {"fill"}:
                raise Fault(".outside", "clamp, wrap, reflect or one fill", outside)
            outside = _inner(outside["fill"], lets, f"{path}.outside.fill", depth)
        elif outside not in ("clamp", "wrap", "reflect"):
            raise Fault(".outside", "clamp, wrap, reflect or a fill", outside)
        return expression.read(given["name"], given["type"], at, outside)
    arguments = {name: value for name, value in given.items() if name != "kind"}
    node: Node = getattr(expression, "value" if kind == "input" else kind)(**arguments)
    return node
