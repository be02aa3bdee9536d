"""Evaluates variants and packed masks for one pair of query row and key at a time, as docs/variants.md defines them.

This module shares no code with the library. It evaluates expressions from their JSON form: exact expressions with numpy's f32
scalars and Python's integers, others in float64.
"""

import math

import numpy as np

F32 = np.float32


def wrapped(value):
    return (int(value) + 2**31) % 2**32 - 2**31


def exact(node, values):
    """An int, a bool or a numpy f32."""
    kind = node["kind"]
    if kind == "constant":
        return {"f32": F32, "i32": int, "bool": bool}[node["type"]](node["value"])
    if kind == "input":
        return values[node["name"]]
    if kind == "parameter":
        return values[node["per"], node["name"]]
    args = [exact(arg, values) for arg in node["args"]]
    with np.errstate(all="ignore"):
        result = OPERATIONS[node["op"]](*args)
    if isinstance(result, int) and not isinstance(result, bool):
        return wrapped(result)
    return bool(result) if isinstance(result, np.bool_) else result


def divided(a, b):
    return a // b if b else 0


def left_over(a, b):
    return a - (a // b) * b if b else 0


def to_i32(a):
    return 0 if np.isnan(a) else int(np.trunc(np.clip(np.float64(a), -(2.0**31), 2.0**31 - 1)))


def larger(a, b):
    """The larger value; NaN if either is NaN. +0 is larger than -0."""
    if a != a or b != b:
        return a if a != a else b
    if a == b and not isinstance(a, int):
        return b if np.signbit(a) else a
    return a if a > b else b


OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": divided,
    "mod": left_over,
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if a < b else a,
    "minimum": lambda a, b: -larger(-a, -b),
    "maximum": larger,
    "neg": lambda a: -a,
    "abs": abs,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "select": lambda c, a, b: a if c else b,
    "f32": F32,
    "i32": to_i32,
    "floor": np.floor,
    "sqrt": np.sqrt,
}
_SMOOTH = {"exp2": lambda a: math.pow(2.0, a), "log2": lambda a: float(np.log2(a)), "tanh": math.tanh, "sqrt": math.sqrt}


def real(node, values):
    """An f32 expression in float64; only its conditions are exact."""
    if node["kind"] != "apply":
        return float(exact(node, values))
    if node["op"] == "select":
        return real(node["args"][1 if exact(node["args"][0], values) else 2], values)
    if node["op"] == "f32":
        return float(exact(node["args"][0], values))
    if node["op"] == "floor":
        return float(exact(node, values))
    args = [real(arg, values) for arg in node["args"]]
    return float((_SMOOTH | {k: v for k, v in OPERATIONS.items() if k not in _SMOOTH})[node["op"]](*args))


class Request:
    """One request of a call: rows of q from `first` on, keys at `places` of the tensor K."""

    def __init__(self, descriptor, args, request, first, q_len, places):
        self.variant = descriptor.variant.model_dump() if descriptor.variant else {}
        self.names = {per: descriptor.variant.parameters(per) if descriptor.variant else () for per in ("head", "row", "key")}
        self.args, self.request, self.first, self.places = args, request, first, places
        self.q_len, self.kv_len = q_len, len(places)
        self.group = descriptor.group_size
        self.masked = descriptor.custom_mask

    def values(self, i, j, h):
        found = {
            "q_pos": i + self.kv_len - self.q_len, "kv_pos": j, "q_len": self.q_len, "kv_len": self.kv_len, "head": h,
            "kv_head": h // self.group,
        }  # fmt: skip
        for n, name in enumerate(self.names["head"]):
            found["head", name] = F32(self.args.head_params[n, h].item())
        for n, name in enumerate(self.names["row"]):
            found["row", name] = self.args.row_params[n, self.first + i].item()
        for n, name in enumerate(self.names["key"] if j is not None else ()):
            found["key", name] = self.args.key_params[(n, *self.places[j])].item()
        return found

    def query(self, q, i, h):
        """The row of q after the query expression of the variant: float64 values, rounded to the dtype of q."""
        if not self.variant.get("query"):
            return q
        values = self.values(i, None, h)
        changed = [exact(self.variant["query"], values | {"query": F32(x)}) for x in q]
        return self.args.q.new_tensor([float(x) for x in changed]).double().numpy()

    def sees(self, i, j, h):
        if self.masked:
            bit = i * self.kv_len + j
            if not self.args.packed_mask[self.args.mask_indptr[self.request] + bit // 8].item() >> bit % 8 & 1:
                return False
        return exact(self.variant["mask"], self.values(i, j, h)) if self.variant.get("mask") else True

    def score(self, s, i, j, h):
        return real(self.variant["logits"], self.values(i, j, h) | {"score": s}) if self.variant.get("logits") else s
