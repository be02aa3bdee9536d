"""Faults in recipes, in their keys and edges, and in the measurement of functions."""

from tests.mutation.mutant import cpu

R = "opfacade/recipes"
OPINFO = "tests/recipes/test_opinfo.py"
EDGES = "tests/recipes/test_edges.py"
OWN = "tests/recipes/test_recipes.py"
LAX = "tests/recipes/test_lax.py"
FUNCTIONS = "tests/families/elementwise/test_functions.py"

RECIPE_FAULTS = (
    cpu("recipes: celu forgets its factor", f"{R}/activations.py", "w.expm1(input / alpha) * alpha", "w.expm1(input / alpha)",
        f"{OPINFO} -k celu"),
    cpu("recipes: lerp jumps at its middle", f"{R}/choices.py", "end - apart * (1.0 - weight)", "end - apart * weight",
        f"{OPINFO} -k lerp"),
    cpu("recipes: a diagonal below is one above", f"{R}/matrices.py", "kept = ahead >= number if upper else ahead <= number",
        "kept = ahead > number if upper else ahead <= number", f"{OPINFO} -k triu"),
    cpu("recipes: cat begins a tensor one late", f"{R}/joins.py", "w.select(coord(axis) >= first,",
        "w.select(coord(axis) > first,", f"{OPINFO} -k cat"),
    cpu("recipes: an expanded input keeps its axis", f"{R}/_draft.py", "if size == self.shape[first + i])", ")",
        f"{OPINFO} -k mul"),
    cpu("recipes: a key does not tell -0 from 0", f"{R}/_recipe.py", '("number", type(given), repr(given), given)',
        '("number", type(given), given)', OWN),
    cpu("recipes: the sign of NaN is NaN", f"{R}/arithmetic.py", "w.select(w.isnan(x), constant(0.0, x.type), w.sign(x))",
        "w.sign(x)", EDGES),
    cpu("recipes: a right shift keeps the sign", f"{R}/lax.py", "w.apply(x.type, w.shr(_unsigned(x), _unsigned(y)))",
        "w.shr(x, y)", LAX),
    cpu("bits: NaN keeps its payload", "opfacade/programs/integers.py", ".long().masked_fill(value.isnan(), quiet)", ".long()",
        LAX),
    cpu("functions: an error beyond the documented is fine", "opfacade/testing/families/_functions.py",
        "() if most <= documented else", "() if most >= 0 else", FUNCTIONS),
    cpu("functions: NaN for a number is no error", "opfacade/testing/families/_functions.py",
        'apply("select", apply("isnan", found), inf, found)', 'apply("select", apply("isnan", found), zero, found)', FUNCTIONS),
    cpu("functions: a measured error is above the documented", "opfacade/programs/ulps.py", "return min(float(single),",
        "return max(float(single),", FUNCTIONS),
)  # fmt: skip
