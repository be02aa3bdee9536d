"""Folds one element at a time, from docs/programs.md; shares no code with the library.

It walks the JSON of a descriptor. Exact values are numpy scalars and Python integers; real ones are numpy long doubles.
"""

import itertools
import math

import mpmath
import numpy as np

from tests.support import naive_program
from tests.support.naive_program import FLOAT, INTEGRAL

WIDE = {"f16": "f32", "bf16": "f32", "f8_e4m3": "f32", "f8_e5m2": "f32", "f8_e8m0": "f32"}
ORDERED = {"max", "min", "any", "all", "argmax", "argmin"}


class Element(naive_program.Element):
    """An element that uses results of stages: ("stage", index, part) -> (value, whether it is exact)."""

    def kind_of(self, node):
        if node["kind"] == "stage":
            return node["type"], self.leaves["stage", node["index"], node["part"]][1]
        return super().kind_of(node)

    def exact(self, node):
        return self.leaves["stage", node["index"], node["part"]][0] if node["kind"] == "stage" else super().exact(node)

    def real(self, node):
        kind, exact = self.kind_of(node)
        if node["kind"] == "stage" and not exact:
            value = self.leaves["stage", node["index"], node["part"]][0]
            return mpmath.mpf(str(value)) if kind in FLOAT else value
        return super().real(node)


def results(problem, tensors, scalars):
    """{output: {place over its axes: (value, exact)}}. tensors: name -> numpy array of values; scalars: name -> number."""
    shape, fold = problem["shape"], problem["fold"]
    kept = [axis for axis in range(len(shape)) if axis not in fold]
    stages = {}  # (index, part) -> {place with None at joined axes: (value, exact)}
    for index, stage in enumerate(problem["stages"]):
        axes, made = fold if stage.get("axes") is None else stage["axes"], {}
        for outer in itertools.product(*([None] if axis in axes else range(size) for axis, size in enumerate(shape))):
            inner = itertools.product(*(range(shape[axis]) for axis in axes))
            values = [
                evaluated(problem, tensors, scalars, stages, filled(outer, axes, place), stage["value"]) for place in inner
            ]
            for part, found in reduced(stage["reducer"], values).items():
                made.setdefault((index, part), {})[outer] = found
        stages |= made
    made = {}
    for output in problem["outputs"]:
        over = list(range(len(shape))) if output.get("over") is None else output["over"]
        assert set(kept) <= set(over)
        for place in itertools.product(*(range(shape[axis]) for axis in over)):
            full = [0] * len(shape)
            for axis, at in zip(over, place, strict=True):
                full[axis] = at
            value, exact, _ = evaluated(problem, tensors, scalars, stages, full, output["value"])
            made.setdefault(output["name"], {})[place] = (value, exact)
    return made


def filled(outer, axes, place):
    full = list(outer)
    for axis, at in zip(axes, place, strict=True):
        full[axis] = at
    return full


def evaluated(problem, tensors, scalars, stages, place, tree):
    """(value, exact, type) of an expression at a place."""
    leaves = {("coord", axis): at for axis, at in enumerate(place)}
    leaves |= {("extent", axis): size for axis, size in enumerate(problem["shape"])}
    for given in problem["inputs"]:
        over = list(range(len(place))) if given.get("over") is None else given["over"]
        kind = WIDE.get(given["dtype"], given["dtype"])
        if tensors[given["name"]].size == 0:
            continue  # an empty row has results, and no element
        raw = tensors[given["name"]][tuple(place[axis] for axis in over)]
        leaves["input", given["name"]] = FLOAT[kind](raw) if kind in FLOAT else bool(raw) if kind == "bool" else int(raw)
    for number in problem.get("scalars", ()):
        leaves["scalar", number["name"]] = FLOAT.get(number["type"], lambda x: x)(scalars[number["name"]])
    for (index, part), found in stages.items():
        joined = next(iter(found))
        leaves["stage", index, part] = found[tuple(None if own is None else at for own, at in zip(joined, place, strict=True))]
    element = Element(problem.get("lets", []), leaves)
    kind, exact = element.kind_of(tree)
    return (element.exact(tree) if exact else element.real(tree)), exact, kind


def reduced(reducer, values):
    """{part: (value, exact)} of the (value, exact, type) of the elements of a row."""
    exact = all(one for _, one, _ in values)
    kind = values[0][2] if values else "f32"
    plain = [value for value, _, _ in values]
    if reducer in ("any", "all"):
        return {"value": ({"any": any, "all": all}[reducer](plain), exact)}
    if reducer in ORDERED:
        at = extreme(plain, 1 if reducer.endswith("max") else -1)
        value = plain[at]
        if not reducer.startswith("arg") and value == 0 and kind in FLOAT:
            zeros = [one for one in plain if one == 0]
            value = (naive_program.largest if reducer == "max" else naive_program.smallest)(zeros[0], value)
            for one in zeros:
                value = (naive_program.largest if reducer == "max" else naive_program.smallest)(value, one)
        return {"value": (value, exact)} | ({"index": (at, exact)} if reducer.startswith("arg") else {})
    if kind in INTEGRAL:
        total = sum(map(int, plain)) if reducer == "sum" else math.prod(map(int, plain))
        return {"value": (naive_program.wrapped(total, kind), exact)}
    return real(reducer, [np.longdouble(str(x)) if isinstance(x, mpmath.mpf) else np.longdouble(x) for x in plain], exact)


def extreme(values, sign):
    """Index of the first NaN, else of the first maximum."""
    best = 0
    for at, value in enumerate(values):
        if value != value:
            return at
        if sign * value > sign * values[best]:
            best = at
    return best


def real(reducer, x, exact):
    total = np.longdouble(0)
    with np.errstate(all="ignore"):
        if reducer in ("sum", "prod"):
            result = np.longdouble(0 if reducer == "sum" else 1)
            for one in x:
                result = result + one if reducer == "sum" else result * one
            return {"value": (result, False)}
        if reducer == "welford":
            for one in x:
                total += one
            mean = total / np.longdouble(len(x)) if x else np.longdouble("nan")
            return {"mean": (mean, False), "m2": (sum(((one - mean) ** 2 for one in x), np.longdouble(0)), False)}
        most = x[extreme(x, 1)] if x else np.longdouble("-inf")
        for one in x:
            total += np.longdouble(1) if one == most else np.exp(one - most)
    return {"max": (FLOAT["f64"](most) if exact else most, exact), "sum": (total, False)}
