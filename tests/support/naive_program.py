"""Programs one element at a time, from docs/programs.md; shares no code with the library.

It walks the JSON text. Exact operations are computed in numpy's scalars and Python's integers, others in mpmath, 40 digits.
"""

import math
import struct
from functools import partial

import mpmath
import numpy as np

FLOAT = {"f32": np.float32, "f64": np.float64}
FUNCTIONS = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "rsqrt", "cbrt", "lgamma", "pow", "atan2", "hypot",
    "erfinv", "erfcx", "ndtri", "bessel_i0", "bessel_i1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
}  # fmt: skip
INTEGRAL = {"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan, "-0": -0.0}
COMPARE = {"lt", "le", "gt", "ge", "eq", "ne"}
TESTS = {"isnan", "isinf", "isfinite", "signbit"}


class Element:
    """The values of one element. leaves: ("input", name) and so on -> (type, a numpy float, an int or a bool); an input that is
    read by position is a nested list. lets: the named expressions of the text."""

    def __init__(self, lets, leaves, sizes=None):
        self.lets, self.leaves, self.sizes = lets, leaves, sizes or {}

    def kind_of(self, node):
        """(type, exact)."""
        kind = node["kind"]
        if kind == "shared":
            return self.kind_of(self.lets[node["index"]])
        if kind in ("coord", "extent"):
            return "i64", True
        if kind != "apply":
            return node["type"], kind != "stage"
        given = [self.kind_of(arg) for arg in node["args"]]
        exact = node["op"] not in FUNCTIONS and all(one for _, one in given)
        op = node["op"]
        if op in COMPARE or op in TESTS:
            return "bool", exact
        if op == "bits":
            return "u32", exact
        if op in ("as_bits", "from_bits"):
            return {"f32": "i32", "f64": "i64", "i32": "f32", "i64": "f64"}[given[0][0]], exact
        return (op if op in INTEGRAL or op in ("bool", "f32", "f64") else given[-1][0]), exact

    def exact(self, node):
        kind = node["kind"]
        if kind == "shared":
            return self.exact(self.lets[node["index"]])
        if kind == "constant":
            value = SPECIAL.get(node["value"], node["value"]) if isinstance(node["value"], str) else node["value"]
            return FLOAT[node["type"]](value) if node["type"] in FLOAT else value
        if kind in ("coord", "extent"):
            return self.leaves[kind, node["axis"]]
        if kind in ("input", "scalar"):
            return self.leaves[kind, node["name"]]
        if kind == "read":
            return self.read(node)
        types = [self.kind_of(arg)[0] for arg in node["args"]]
        with np.errstate(all="ignore"):
            return operation(node["op"], types, [self.exact(arg) for arg in node["args"]])

    def read(self, node):
        found = self.leaves["input", node["name"]]
        for axis, at in enumerate(node["at"]):
            place, size = self.exact(at), self.sizes[node["name"]][axis]
            if not 0 <= place < size:
                outside = node["outside"]
                if isinstance(outside, dict):
                    return self.exact(outside["fill"])
                inside = {"clamp": clamped, "wrap": int.__mod__, "reflect": mirrored}
                place = inside[outside](int(place), size)
            found = found[place]
        return found

    def real(self, node):
        """An mpf (or inf, nan), an int or a bool: the value of real arithmetic after exact parts."""
        kind, exact = self.kind_of(node)
        if exact:
            value = self.exact(node)
            return mpmath.mpf(float(value)) if kind in FLOAT else value
        if node["kind"] == "shared":
            return self.real(self.lets[node["index"]])
        args = [self.real(arg) for arg in node["args"]]
        return REAL[node["op"]](*args)


def clamped(place, size):
    return min(max(place, 0), size - 1)


def mirrored(place, size):
    while not 0 <= place < size:
        place = -place if place < 0 else 2 * (size - 1) - place
        if size == 1:
            return 0
    return place


def bounds(kind):
    bits = int(kind[1:])
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind[0] == "i" else (0, 2**bits - 1)


def wrapped(value, kind):
    least, most = bounds(kind)
    return (int(value) - least) % (most - least + 1) + least


def operation(op, types, args):
    kind = types[-1]
    if op == "select":
        return args[1] if args[0] else args[2]
    if op == "bits":
        return philox(*args)
    if op == "as_bits":
        shape = "<f" if kind == "f32" else "<d"
        number = FLOAT[kind](math.nan if np.isnan(args[0]) else args[0])
        return int.from_bytes(struct.pack(shape, number), "little", signed=True)
    if op == "from_bits":
        shape, size, made = ("<f", 4, "f32") if kind == "i32" else ("<d", 8, "f64")
        return FLOAT[made](struct.unpack(shape, int(args[0]).to_bytes(size, "little", signed=True))[0])
    if op in FLOAT or op in INTEGRAL or op == "bool":
        return cast(args[0], types[0], op)
    if op.startswith("round_") and op != "round_away":
        return np.float32(narrowed(float(args[0]), op.removeprefix("round_")))
    if kind == "bool":
        return {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "xor": lambda a, b: a != b, "not": lambda a: not a}[op](
            *args
        )
    if kind in INTEGRAL:
        value = INTEGER[op](kind, *args)
        return value if isinstance(value, bool) else wrapped(value, kind)
    value = REALS[op](*args)
    return bool(value) if op in COMPARE | TESTS else FLOAT[kind](value)


def cast(value, source, target):
    if target == "bool":
        return bool(value != 0)
    if target in FLOAT:
        if source in INTEGRAL:
            return FLOAT[target](nearest(int(value), 24 if target == "f32" else 53))
        return FLOAT[target](value)
    if source in FLOAT:
        if math.isnan(value):
            return 0
        least, most = bounds(target)
        return max(least, min(most, int(value))) if math.isfinite(value) else (most if value > 0 else least)
    return wrapped(int(value), target)


def nearest(value, digits):
    """An integer to so many binary digits, ties to even."""
    sign, size = (-1, -value) if value < 0 else (1, value)
    drop = max(0, size.bit_length() - digits)
    if drop:
        low, size = size & ((1 << drop) - 1), size >> drop
        half = 1 << (drop - 1)
        size += low > half or (low == half and size & 1)
    return float(sign * (size << drop))


def narrowed(value, dtype):
    """The nearest value of a narrow type, ties to even, by counting its steps; of f8_e8m0 the one above."""
    if dtype == "f8_e8m0":
        powers = (2.0**exponent for exponent in range(-127, 128))
        return value if math.isnan(value) else next((power for power in powers if power >= value), 2.0**127)
    digits, least, largest = {"f16": (11, -14, 65504.0), "bf16": (8, -126, 3.3895313892515355e38), "f8_e4m3": (4, -6, 448.0),
                              "f8_e5m2": (3, -14, 57344.0)}[dtype]  # fmt: skip
    if math.isnan(value) or value == 0:
        return value
    if dtype.startswith("f8"):
        value = max(-largest, min(largest, value))
    if math.isinf(value):
        return value
    exponent = max(math.frexp(value)[1] - 1, least)
    step = math.ldexp(1.0, exponent - digits + 1)
    found = math.copysign(round(abs(value) / step) * step, value)
    return found if abs(found) <= largest else math.copysign(math.inf, value)


def same_sign_divide(a, b, down):
    if b == 0:
        return 0
    return a // b if down else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def shifted(kind, a, by, left):
    bits = int(kind[1:])
    if not 0 <= by < bits:
        return 0 if left or a >= 0 else -1
    return a << by if left else a >> by


INTEGER = {
    "add": lambda k, a, b: a + b,
    "sub": lambda k, a, b: a - b,
    "mul": lambda k, a, b: a * b,
    "neg": lambda k, a: -a,
    "abs": lambda k, a: abs(a),
    "sign": lambda k, a: (a > 0) - (a < 0),
    **dict.fromkeys(("min", "minimum"), lambda k, a, b: min(a, b)),
    **dict.fromkeys(("max", "maximum"), lambda k, a, b: max(a, b)),
    "floordiv": lambda k, a, b: same_sign_divide(a, b, True),
    "truncdiv": lambda k, a, b: same_sign_divide(a, b, False),
    "mod": lambda k, a, b: a - b * same_sign_divide(a, b, True) if b else 0,
    "rem": lambda k, a, b: a - b * same_sign_divide(a, b, False) if b else 0,
    "and": lambda k, a, b: a & b,
    "or": lambda k, a, b: a | b,
    "xor": lambda k, a, b: a ^ b,
    "not": lambda k, a: ~a,
    "shl": lambda k, a, b: shifted(k, a, b, True),
    "shr": lambda k, a, b: shifted(k, a, b, False),
    "lt": lambda k, a, b: bool(a < b),
    "le": lambda k, a, b: bool(a <= b),
    "gt": lambda k, a, b: bool(a > b),
    "ge": lambda k, a, b: bool(a >= b),
    "eq": lambda k, a, b: bool(a == b),
    "ne": lambda k, a, b: bool(a != b),
}


def negative(a):
    return bool(np.signbit(a))


def largest(a, b):
    if np.isnan(a) or np.isnan(b):
        return math.nan
    if a == b == 0:
        return b if negative(a) else a
    return max(a, b)


def smallest(a, b):
    if np.isnan(a) or np.isnan(b):
        return math.nan
    if a == b == 0:
        return a if negative(a) else b
    return min(a, b)


def floor_rest(a, b):
    rest = np.fmod(a, b)
    return rest + b if rest != 0 and (rest < 0) != (b < 0) else rest


REALS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": lambda a: abs(a),
    "sign": lambda a: a if np.isnan(a) else float((a > 0) - 0) - float((a < 0) - 0),
    "copysign": np.copysign,
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if a < b else a,
    "minimum": smallest,
    "maximum": largest,
    "fmin": lambda a, b: b if np.isnan(a) else a if np.isnan(b) else smallest(a, b),
    "fmax": lambda a, b: b if np.isnan(a) else a if np.isnan(b) else largest(a, b),
    "rem": np.fmod,
    "mod": floor_rest,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "round_away": lambda a: a if not np.isfinite(a) else np.copysign(abs(np.trunc(a)) + (abs(a - np.trunc(a)) >= 0.5), a),
    "sqrt": np.sqrt,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def _lgamma(a):
    return mpmath.inf if a <= 0 and a == mpmath.floor(a) else mpmath.log(abs(mpmath.gamma(a)))


def _bell(p):
    """The argument of the normal distribution function: negative for values below a half."""
    if not 0 <= p <= 1:
        return mpmath.nan
    return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1) if p >= 1e-3 else -_far(p)


def _far(p):
    """Newton on the logarithm of the tail, from its first term."""
    if p == 0:
        return mpmath.inf
    x = mpmath.sqrt(-2 * mpmath.log(p))
    for _ in range(60):
        tail = mpmath.erfc(x / mpmath.sqrt(2)) / 2
        step = (mpmath.log(tail) - mpmath.log(p)) * tail * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(x * x / 2)
        x += step
        if abs(step) < mpmath.mpf(10) ** -38 * x:
            break
    return x


OWN = {"erfinv", "exp2", "log2", "rsqrt", "cbrt", "lgamma", "pow", "erfcx", "ndtri"} | {
    name for name in FUNCTIONS if "bessel" in name
}
REAL = {
    **{name: getattr(mpmath, name) for name in FUNCTIONS - OWN},
    "exp2": lambda a: mpmath.mpf(2) ** a,
    "log2": lambda a: mpmath.log(a, 2),
    "rsqrt": lambda a: 1 / mpmath.sqrt(a),
    "cbrt": lambda a: mpmath.sign(a) * mpmath.cbrt(abs(a)),
    "lgamma": _lgamma,
    "erfinv": lambda a: mpmath.erfinv(a) if abs(a) <= 1 else mpmath.nan,
    "erfcx": lambda a: mpmath.exp(a * a) * mpmath.erfc(a),
    "ndtri": _bell,
    **{f"bessel_{kind}{order}": partial(getattr(mpmath, f"bessel{kind}"), order) for kind in "ijy" for order in (0, 1)},
    "pow": mpmath.power,
    "sqrt": mpmath.sqrt,
    "floor": mpmath.floor,
    "select": lambda c, a, b: a if c else b,
    **{name: REALS[name] for name in ("add", "sub", "mul", "div", "neg", "abs", *COMPARE)},
    **dict.fromkeys(("min", "minimum", "fmin"), min),
    **dict.fromkeys(("max", "maximum", "fmax"), max),
    **dict.fromkeys(("f32", "f64"), lambda a: a),
}


def philox(seed, offset, index, stream):
    counter = (offset + index // 4) % 2**64
    words = [counter % 2**32, counter >> 32, stream % 2**32, stream >> 32]
    keys = [seed % 2**32, seed >> 32]
    for _ in range(10):
        one, two = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [(two >> 32) ^ words[1] ^ keys[0], two % 2**32, (one >> 32) ^ words[3] ^ keys[1], one % 2**32]
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return words[index % 4]


def bit_pattern(value, kind):
    """The compared value: the bits of a float, of which all NaN are one; the number of an integer."""
    if kind not in FLOAT:
        return int(value)
    if np.isnan(value):
        return "nan"
    return struct.pack("d", float(value))
