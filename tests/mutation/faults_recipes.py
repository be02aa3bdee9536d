"""Faults in recipes, in their keys and edges, and in the measurement of functions."""

from tests.mutation.mutant import cpu

R = "opfacade/recipes"
OPINFO = "tests/recipes/test_opinfo.py"
FOLDS = "tests/recipes/test_folds.py"
FUNCTIONS = "tests/families/elementwise/test_functions.py"
DRAWS = "tests/recipes/test_draws.py"

RECIPE_FAULTS = (
    cpu("recipes: nanmean counts NaN", f"{R}/folds/reductions.py", "as_float(counted(draft, there), x)",
        "as_float(draft.count(), x)",
        f"{OPINFO} -k nanmean"),
    cpu("recipes: keepdim has its ones behind the other axes", f"{R}/_folding.py",
        "over = tuple(place[axis] for axis in range(rank) if axis in place)", "over = tuple(sorted(place.values()))",
        f"{FOLDS} -k any_axes"),
    cpu("recipes: a label behind the end counts", f"{R}/losses/classification.py", "given = label < end", "given = at >= 0",
        f"{FOLDS} -k each_reduction"),
    cpu("recipes: the place of a minimum is that of a maximum", f"{R}/folds/min_max.py",
        'draft.join(f"arg{word}", number, part)',
        'draft.join("argmax", number, part)', f"{OPINFO} -k argmin"),
    cpu("draws: a uniform number has the high bits", f"{R}/_noise.py", "w.and_(bits, 2**digits - 1)",
        "w.shr(bits, (64 if type == 'f64' else 32) - digits)", f"{DRAWS} -k uniform_number"),
    cpu("draws: an exponential is as coarse as 24 bits", f"{R}/_noise.py",
        "w.select(low, -w.log1p(-near), -w.log(near))", "-w.log(self.uniform(dtype) + 2.0**-25)",
        f"{DRAWS} -k tails"),
    cpu("draws: weights are of no account", f"{R}/creation/draws.py",
        "weight / arrival, constant(0.0", "1.0 / arrival, constant(0.0",
        f"{DRAWS} -k counts"),
    cpu("functions: a far wave has a phase too early", "opfacade/programs/waves.py",
        "if order == 0 else (sin - cos, -(cos + sin))",
        "if order == 0 else (cos + sin, sin - cos)", "tests/programs/test_evaluate.py -k bessel_j1"),
    cpu("functions: lgamma of f64 is bounded where that of f32 is", "opfacade/programs/ulps.py", '"f64": (-23.0001, -2.2637)',
        '"f64": (-10.001, -2.264)', "tests/programs/test_bound.py -k lgamma"),
    cpu("functions: an error beyond the documented is fine", "opfacade/testing/families/_functions.py",
        "() if most <= limit else", "() if most >= 0 else", FUNCTIONS),
    cpu("functions: CUDA's errors are those from the real value", "opfacade/programs/ulps.py", "ROUNDED = 0.5", "ROUNDED = 0.0",
        "tests/families/elementwise/test_functions.py -k half_an_ulp"),
    cpu("functions: a sample of f64 has the worst argument", "opfacade/programs/ulps.py", "MARGIN = 0.25", "MARGIN = 0.0",
        "tests/bench/test_f64.py"),
)  # fmt: skip
