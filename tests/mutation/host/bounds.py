"""Faults in the bounds: a bound that is too large, lacks a term, or is compared wrongly passes kernels that are wrong."""

from tests.mutation.mutant import host

BOUNDS = "testing/bounds.py"
ATTENTION = "testing/families/attention/bound.py"
RADII = "programs/propagation.py"
COMPARED = "tests/testing/test_compare.py"
TERMS = "tests/testing/test_bound_terms.py"
EXPRESSION = "tests/testing/test_expression_balls.py"

FAULTS = (
    host("compare: every bound is 100 x", BOUNDS, "error / bound)", "error / (100 * bound))", COMPARED),
    host(
        "bound: P is rounded 100 x as coarsely",
        ATTENTION,
        'hard = c["u_p"] * sums["pv"]',
        'hard = 100 * c["u_p"] * sums["pv"]',
        TERMS,
    ),
    host("bound: merging splits costs 100 x", ATTENTION, 'merge = c["split"] * (', 'merge = 100 * c["split"] * (', TERMS),
    host(
        "bound: the output is rounded 100 x as coarsely",
        ATTENTION,
        "+ u * o.abs() + eta))",
        "+ 100 * u * o.abs() + eta))",
        TERMS,
    ),
    host(
        "bound: lse of an empty row may be anything",
        ATTENTION,
        "spread = spread.masked_fill(weights.empty.squeeze(-1), 0.0)\n",
        "spread = spread + 0.0\n",
        TERMS,
    ),
    host(
        "bound: sums before are not looked at",
        "testing/families/attention/narrow_sums.py",
        "torch.maximum(before.abs(), after.abs())",
        "0 * after",
        TERMS,
    ),
    host(
        "expression bound: a minimum has the error of its first",
        RADII,
        "(a.v, b.v), torch.maximum(a.r, b.r))",
        "(a.v, b.v), a.r + 0 * b.r)",
        EXPRESSION,
    ),
    host(
        "expression bound: exp2 grows as its argument",
        RADII,
        "(v * (a.r * math.log(base)).expm1())",
        "(a.r + 0 * v)",
        EXPRESSION,
    ),
)
