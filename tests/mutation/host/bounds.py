"""Faults in the bounds: a bound that is too large, lacks a term, or is compared wrongly passes kernels that are wrong."""

from tests.mutation.mutant import host

BOUNDS = "testing/bounds.py"
ATTENTION = "testing/families/attention/bound.py"
RADII, STEPS = "programs/propagation.py", "programs/bound.py"
ORACLE = "testing/families/attention/oracle.py"
APPEND = "testing/families/kv_cache/oracle.py"
COMPARED = "tests/testing/test_compare.py"
MEASURE = "tests/testing/test_numerics.py -k nonfinite"
FORMS = "tests/testing/test_numerics_forms.py tests/testing/test_numerics.py -k masked or nonfinite or keys"
TERMS = "tests/testing/test_bound_terms.py"
RULES = "tests/families/attention/test_bounds.py"
SUMS, OF_SUMS = "testing/families/_matmul_sums.py", "tests/families/matmul/test_sums.py"
EXPRESSION = "tests/testing/test_expression_balls.py"
APPENDED = "tests/families/kv_cache/test_oracle.py"

FAULTS = (
    host(
        "sums: a chain of fp8 never ends", SUMS, "before = before if first % chain else before * 0", "before = before", OF_SUMS
    ),
    host(
        "sums: a step of fp8 is cut beside its products alone", SUMS, ".maximum(before.abs()).maximum(after.abs())", "", OF_SUMS
    ),
    host("sums: steps of fp8 are not cut", SUMS, 'rest = rest + c["u_step"] * _largest(x, w, c)', "pass", OF_SUMS),
    host(
        "sums: a segment never ends",
        SUMS,
        "before = x.new_zeros(()) if first % segment == 0 else before",
        "before = before",
        OF_SUMS,
    ),
    host("compare: the last output alone counts", BOUNDS, "Report(max(a.worst, b.worst)", "Report(b.worst", COMPARED),
    host("compare: the last tight ratio alone counts", BOUNDS, "max(a.worst_tight, b.worst_tight)", "b.worst_tight", COMPARED),
    host(
        "compare: elements are not added up", BOUNDS, "lead.where, a.elements + b.elements", "lead.where, b.elements", COMPARED
    ),
    host("compare: the place is that of the first report", BOUNDS, "lead = a if", "lead = a if True or", COMPARED),
    host("compare: the tight bound is the hard one", BOUNDS, "item.want, item.tight)", "item.want, item.hard)", COMPARED),
    host("compare: the mean of an output counts", BOUNDS, "Report(float(hard.max())", "Report(float(hard.mean())", COMPARED),
    host("compare: every bound is 100 x", BOUNDS, "error / bound)", "error / (100 * bound))", COMPARED),
    host(
        "compare: NaN in place of a number passes", BOUNDS, "~(got.isfinite() & want.isfinite())", "~want.isfinite()", COMPARED
    ),
    host("compare: NaN where NaN is wanted is wrong", BOUNDS, " | (got.isnan() & want.isnan())", "", COMPARED),
    host(
        "compare: an exact zero of a zero bound is wrong",
        BOUNDS,
        "torch.where(error == 0, torch.zeros_like(error), error / bound)",
        "error / bound",
        COMPARED,
    ),
    host("compare: the place is the best element", BOUNDS, "int(hard.argmax())", "int(hard.argmin())", COMPARED),
    host("bound: scores without the dot product", ATTENTION, '(row.q.shape[-1] / c["k_step"] + 4)', "4", TERMS),
    host(
        "bound: P is rounded 100 x as coarsely",
        ATTENTION,
        'hard = c["u_p"] * sums["pv"]',
        'hard = 100 * c["u_p"] * sums["pv"]',
        TERMS,
    ),
    host("bound: the tight form has 600 sigma", ATTENTION, "_SIGMA, _U, _LARGE = 6.0,", "_SIGMA, _U, _LARGE = 600.0,", TERMS),
    host("bound: merging splits costs nothing", ATTENTION, 'merge = c["split"] * (', "merge = 0.0 * (", TERMS),
    host("bound: merging splits costs 100 x", ATTENTION, 'merge = c["split"] * (', 'merge = 100 * c["split"] * (', TERMS),
    host("bound: lse of merged splits costs nothing", ATTENTION, 'spread + c["split"] * (', "spread + 0.0 * (", TERMS),
    host("bound: factors of K and V cost nothing", ATTENTION, 'merge + c.get("scaled", 0.0)', "merge + 0.0", TERMS),
    host("bound: factors cost nothing in scores", ATTENTION, 'eta + c.get("scaled", 0.0)', "eta + 0.0", TERMS),
    host(
        "bound: the output is rounded 100 x as coarsely",
        ATTENTION,
        "+ u * o.abs() + eta))",
        "+ 100 * u * o.abs() + eta))",
        TERMS,
    ),
    host("bound: underflow of P is left out", ATTENTION, "cut + underflow, torch", "cut, torch", TERMS),
    host(
        "bound: an empty row may hold anything",
        ATTENTION,
        "u * o.abs() + eta)).masked_fill(empty, 0.0)",
        "u * o.abs() + eta))",
        FORMS,
    ),
    host(
        "bound: lse of an empty row may be anything",
        ATTENTION,
        "spread = spread.masked_fill(weights.empty.squeeze(-1), 0.0)\n",
        "spread = spread + 0.0\n",
        TERMS,
    ),
    host("bound: a sink has the error of a product", ATTENTION, "        eta[..., -1] = 0.0\n", "", TERMS),
    host(
        "bound: the spread of the values does not limit it",
        ATTENTION,
        "if bool((eta[:, i] > _LARGE).any()):",
        "if False:",
        TERMS,
    ),
    host("bound: a cap damps nothing", ATTENTION, "eta = eta * (1 - torch.tanh(nearest) ** 2)", "eta = eta", TERMS),
    host("bound: tanh is exact", ATTENTION, ' + c["tanh"] * row.soft_cap', "", TERMS),
    host(
        "bound: a value that is not finite reaches every row",
        ATTENTION,
        "o = o + torch.where(row.seen[:, :, key, None], term, torch.zeros_like(o))",
        "o = o + term",
        MEASURE,
    ),
    host("bound: underflow of q is left out", ATTENTION, 'if c.get("eta_q"):', "if False:", TERMS),
    host("bound: products that are cut cost nothing in scores", ATTENTION, 'if "u_step" in c:', "if False:", TERMS),
    host(
        "bound: products that are cut cost nothing in o", ATTENTION, 'c.get("u_step", 0.0) * c.get("chain", 0.0)', "0.0", TERMS
    ),
    host("bound: a ramp in exponents costs nothing", ATTENTION, '2 * c.get("line", 0.0)', "0.0", TERMS),
    host("bound: exp is exact", ATTENTION, 'weights.top.abs()) + c["exp"]', "weights.top.abs())", TERMS),
    host(
        "bound: sums before are not looked at",
        "testing/families/attention/narrow_sums.py",
        "torch.maximum(before.abs(), after.abs())",
        "0 * after",
        TERMS,
    ),
    host(
        "bound: a part of a split is as long as a tile", ORACLE, 'c = c | {"part": float(descriptor.kv_split)}', "pass", TERMS
    ),
    host(
        "merge bound: without the term of its sums",
        ORACLE,
        "relative = (2.0**-20 + (count + 8) * 2.0**-23 +",
        "relative = (2.0**-20 +",
        TERMS,
    ),
    host("merge bound: 100 x", ORACLE, "hard = 1.02 * (", "hard = 102 * (", TERMS),
    host("merge bound: lse 100 x", ORACLE, "spread = 1.02 * (", "spread = 102 * (", TERMS),
    host("merge bound: without the size of lse", ORACLE, " + 8 * 2.0**-24 * magnitude)[..., None]", ")[..., None]", TERMS),
    host(
        "merge oracle: an empty state counts",
        ORACLE,
        "torch.where((lse == -math.inf)[..., None], torch.zeros_like(given), given)",
        "given",
        TERMS,
    ),
    host(
        "oracle: the sample is always the first rows",
        ORACLE,
        "sorted(rng.sample(range(q_indptr[-1]), min(rows, q_indptr[-1]))",
        "sorted(range(min(rows, q_indptr[-1]))",
        TERMS,
    ),
    host(
        "oracle: the window is not looked at",
        ORACLE,
        "if descriptor.window_left >= 0:",
        "if False:",
        "tests/testing/test_structural.py -k reference_is_exact_where and decode-off-odd-window-cap",
    ),
    host(
        "oracle: the base of factors is 1",
        ORACLE,
        "return k * args.k_scale.double()[:, None], v * args.v_scale.double()[:, None]",
        "return k, v",
        "tests/families/attention/test_fp8_cache.py",
    ),
    host(
        "append oracle: other slots may change",
        APPEND,
        "if want is not None and not torch.equal(stored, want):",
        "if False:",
        APPENDED,
    ),
    host(
        "append oracle: copied rows may differ",
        APPEND,
        "0.0 if torch.equal(got, new) else math.inf",
        "0.0",
        APPENDED,
    ),
    host(
        "append oracle: rotation is 100 x as coarse",
        APPEND,
        "slack[..., a] = 4 * _U",
        "slack[..., a] = 4e4 * _U",
        APPENDED,
    ),
    host(
        "append oracle: a quotient is 10000 x as coarse",
        APPEND,
        "slack + 3 * _U * x.abs()",
        "slack + 3e4 * _U * x.abs()",
        APPENDED,
    ),
    host(
        "append oracle: the values are not looked at",
        APPEND,
        'for name in ("k_data", "v_data"):',
        'for name in ("k_data",):',
        APPENDED,
    ),
    host(
        "expression bound: a product forgets the second factor",
        RADII,
        "_product(a.v.abs(), b.r) + _product(b.v.abs(), a.r) + _product(a.r, b.r)",
        "_product(b.v.abs(), a.r)",
        EXPRESSION,
    ),
    host("expression bound: a divisor may be 0", RADII, "/ least).masked_fill(least <= 0, INF)", "/ least)", EXPRESSION),
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
    host(
        "expression bound: no step is rounded",
        STEPS,
        "r = (r + self.machine.relative(node.op, node.type) * (v.abs() + r) + least)",
        "r = (r + least)",
        EXPRESSION,
    ),
    host(
        "expression bound: a value past f32 has a bound",
        STEPS,
        "return Ball(v, r.masked_fill(v.isfinite() & (v.abs() + r > LARGEST[node.type]), math.inf))",
        "return Ball(v, r)",
        EXPRESSION,
    ),
)
