"""einsum of two operands as a matrix product."""

from __future__ import annotations

from collections.abc import Iterable

from opfacade.plans.matmul import MatmulDescriptor
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, is_like, refuse, seen
from opfacade.recipes.products._product import Product, one_dtype


def _labels(equation: str) -> tuple[str, str, str]:
    """The labels of both operands and of the result; without an arrow, the result has the labels that occur once, sorted."""
    given, arrow, out = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    if len(parts) != 2 or not all(not part or part.isalpha() for part in (*parts, out)):
        refuse("equation", "letters for the axes of two operands, such as 'mk,kn->mn'", equation)
    both = "".join(parts)
    out = out if arrow else "".join(sorted(one for one in set(both) if both.count(one) == 1))
    if any(len(set(part)) < len(part) for part in (*parts, out)) or set(out) - set(both):
        refuse("equation", "each label at most once in each operand and in the result", equation)
    return parts[0], parts[1], out


def _extents(labels: tuple[str, str], tensors: tuple[Shaped, Shaped]) -> dict[str, int]:
    found: dict[str, int] = {}
    for at, (own, one) in enumerate(zip(labels, tensors, strict=True)):
        if len(own) != one.rank:
            refuse(f"operands[{at}]", f"{len(own)} axes, {own!r}", one.shape)
        for label, size in zip(own, one.shape, strict=True):
            if found.setdefault(label, size) != size:
                refuse(f"operands[{at}]", f"{found[label]} elements along {label!r}", one.shape)
    return found


def _group(wanted: set[str], own: str) -> str:
    """The wanted labels, in the order of the operand."""
    return "".join(label for label in own if label in wanted)


def _last(own: str, groups: dict[str, str]) -> str:
    """The name of the group whose labels end the operand. Refuses the batch group in this position, and groups whose labels are
    not adjacent and in order, because each group becomes one axis."""
    for group in groups.values():
        if group and group not in own:
            refuse("equation", f"the axes {group!r} adjacent and in the same order in each operand", own)
    name = next((name for name, group in groups.items() if group and own.endswith(group)), next(iter(groups)))
    return (
        name
        if name != "batch"
        else refuse("equation", f"a label of one operand, or a summed label, at the end of {own!r}", own)
    )


@recipe("einsum", "two operands, x and weight; the labels of each group are combined into one axis")
def einsum(equation: str, *operands: object) -> MatmulDescriptor:
    """Labels in both operands and the result form the batch axis, labels in one operand and the result form the rows or
    columns, and labels in both operands but not in the result form k. The labels of each group must be adjacent and in the same
    order; the columns come last in the result."""
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not isinstance(equation, str):
        refuse("equation", "a text", equation)
    a, b, out = _labels(equation)
    if len(given) != 2 or not all(map(is_like, given)):
        refuse("operands", "two tensors", len(given))
    x, weight = (seen("operands", one) for one in given)
    sizes, dtype = _extents((a, b), (x, weight)), one_dtype({"operands[0]": x, "operands[1]": weight})
    return _product((a, b, out), sizes).descriptor(dtype)


def _product(labels: tuple[str, str, str], sizes: dict[str, int]) -> Product:
    a, b, out = labels
    alone = (set(a) ^ set(b)) - set(out)
    if alone:
        refuse("equation", f"a result with {min(alone)!r}, which occurs in only one operand", out)
    batch, k = _group(set(a) & set(b), out), _group(set(a) & set(b) - set(out), a)
    rows, columns = _group(set(a) - set(b), a), _group(set(b) - set(a), b)
    of_x = _last(a, {"k": k, "rows": rows, "batch": batch})
    of_weight = _last(b, {"k": k, "columns": columns, "batch": batch})
    if _last(out, {"columns": columns, "rows": rows, "batch": batch}) == "rows" and columns:
        refuse("equation", f"a result that ends with {columns!r}: swap the operands", out)
    layouts = ("mk" if of_x == "k" else "km", "nk" if of_weight == "k" else "kn")
    m, n, summed = (_count(group, sizes) for group in (rows, columns, k))
    return Product(tuple(sizes[one] for one in batch), m, n, summed, tuple(sizes[one] for one in out), layouts)


def _count(group: Iterable[str], sizes: dict[str, int]) -> int:
    return Shaped(tuple(sizes[label] for label in group), "f32").numel
