"""Random typed expressions, as hypothesis strategies: every operation, input and kind of parameter, wherever it may stand."""

from functools import wraps

from hypothesis import strategies as st

from opfacade.plans._attention.expression import Constant, Input, Parameter, apply
from opfacade.plans._attention.variant import Variant, kv_pos, log2, maximum, minimum, score

INTS = st.one_of(st.integers(-5, 5), st.sampled_from([2**31 - 1, -(2**31), 2**24 + 1]))
FLOATS = st.one_of(st.floats(-4, 4, width=32), st.sampled_from([0.0, 0.1, 1e30, 1e-40]))
ROW_INPUTS = ("q_pos", "q_len", "kv_len", "head", "kv_head")


def named(strategy):
    """A strategy whose repr is its call: the repr of such a tree would have kilobytes."""
    known = {}

    def made(*args, **kwargs):
        key = repr((args, kwargs))  # expressions refuse to be compared
        if key not in known:
            known[key] = strategy(*args, **kwargs)
        return known[key]

    @wraps(strategy)
    def call(*args, **kwargs):
        return drawn(made, args, tuple(kwargs.items()))

    return call


@st.composite
def drawn(draw, made, args, kwargs):
    return draw(made(*args, **dict(kwargs)))


@named
def ints(depth, per_key=True):
    names = [*ROW_INPUTS, "kv_pos"] if per_key else ROW_INPUTS
    leaves = [
        INTS.map(lambda v: Constant(type="i32", value=v)),
        st.sampled_from(names).map(lambda name: Input(name=name)),
        st.sampled_from(["r1", "r2"]).map(lambda name: Parameter(name=name, per="row")),
    ]
    if per_key:
        leaves.append(st.sampled_from(["k1", "k2"]).map(lambda name: Parameter(name=name, per="key")))
    if depth == 0:
        return st.one_of(leaves)
    inner = ints(depth - 1, per_key)
    two = st.sampled_from(["add", "sub", "mul", "min", "max", "minimum", "maximum", "floordiv", "mod"])
    return st.one_of(
        *leaves,
        st.builds(apply, two, inner, inner),
        st.builds(apply, st.sampled_from(["neg", "abs"]), inner),
        st.builds(apply, st.just("i32"), floats(depth - 1, per_key)),
        st.builds(apply, st.just("select"), truths(depth - 1, per_key), inner, inner),
    )


@named
def floats(depth, per_key=True, more=()):
    """Exact f32, also of the leaves in `more`."""
    leaves = [
        FLOATS.map(lambda v: Constant(type="f32", value=v)),
        st.sampled_from(["h1", "h2"]).map(lambda name: Parameter(name=name, per="head")),
        *map(st.just, more),
    ]
    if depth == 0:
        return st.one_of(leaves)
    inner = floats(depth - 1, per_key, more)
    return st.one_of(
        *leaves,
        st.builds(apply, st.sampled_from(["add", "sub", "mul", "div", "min", "max", "minimum", "maximum"]), inner, inner),
        st.builds(apply, st.sampled_from(["neg", "abs", "floor", "sqrt"]), inner),
        st.builds(apply, st.just("f32"), ints(depth - 1, per_key)),
        st.builds(apply, st.just("select"), truths(depth - 1, per_key), inner, inner),
    )


@named
def truths(depth, per_key=True):
    if depth == 0:
        return st.booleans().map(lambda v: Constant(type="bool", value=v))
    inner, compare = truths(depth - 1, per_key), st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])
    return st.one_of(
        st.builds(apply, compare, ints(depth - 1, per_key), ints(depth - 1, per_key)),
        st.builds(apply, compare, floats(depth - 1, per_key), floats(depth - 1, per_key)),
        st.builds(apply, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(apply, st.just("not"), inner),
        st.builds(apply, st.just("select"), inner, inner, inner),
    )


@named
def smooth(depth):
    """f32 of moderate size that depends on the score; a logarithm or a quotient stays away from where it is not defined."""
    leaves = [st.just(score), st.floats(-2, 2, width=32).map(lambda v: Constant(type="f32", value=v))]
    leaves.append(st.sampled_from(["h1", "h2"]).map(lambda name: Parameter(name=name, per="head")))
    if depth == 0:
        return st.one_of(leaves)
    inner = smooth(depth - 1)
    return st.one_of(
        *leaves,
        st.builds(apply, st.sampled_from(["add", "sub", "mul", "min", "max", "minimum", "maximum"]), inner, inner),
        st.builds(apply, st.sampled_from(["neg", "abs", "tanh"]), inner),
        inner.map(lambda x: apply("exp2", minimum(x, 3.0))),
        inner.map(lambda x: log2(abs(x) + 1.0)),
        inner.map(lambda x: apply("sqrt", abs(x) + 0.5)),
        st.builds(lambda a, b: a / (abs(b) + 0.25), inner, inner),
        inner.map(lambda x: x + apply("f32", kv_pos) * 0.125),
        st.builds(apply, st.just("select"), truths(depth - 1), inner, inner),
    )


def level(expression):
    """The same where it is small, so that exponentials tell more than one key from the others."""
    return minimum(maximum(expression, -30.0), 30.0)


@named
def variants(depth=3):
    """Any part may be missing, but not all."""
    query = floats(depth - 1, per_key=False, more=(Input(name="query"),)).map(level)
    parts = {"logits": smooth(depth).map(level), "mask": truths(depth), "query": query}
    optional = {name: st.none() | strategy for name, strategy in parts.items()}
    return st.fixed_dictionaries(optional).filter(lambda d: any(v is not None for v in d.values())).map(lambda d: Variant(**d))
