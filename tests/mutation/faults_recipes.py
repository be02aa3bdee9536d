"""Faults in recipes, in their keys and edges, and in the measurement of functions."""

from tests.mutation.mutant import cpu

R = "opfacade/recipes"
OPINFO = "tests/recipes/test_opinfo.py"
EDGES = "tests/recipes/test_edges.py"
OWN = "tests/recipes/test_recipes.py"
LAX = "tests/recipes/test_lax.py"
FOLDS = "tests/recipes/test_folds.py"
FUNCTIONS = "tests/families/elementwise/test_functions.py"
TRACED = "tests/families/elementwise/test_traced.py"
MAPS = "tests/families/elementwise/test_reference.py"

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
    cpu("recipes: a variance ignores its correction", f"{R}/moments.py",
        'w.maximum(count - draft.number("correction", correction, x.type), 0.0)', "count", f"{OPINFO} -k var"),
    cpu("recipes: a mean counts the kept axes too", f"{R}/_folding.py", "for axis in self.folded if axes is None else axes:",
        "for axis in range(len(self.shape)) if axes is None else axes:", f"{FOLDS} -k any_axes"),
    cpu("recipes: nanmean counts NaN", f"{R}/reductions.py", "as_float(counted(draft, there), x)", "as_float(draft.count(), x)",
        f"{OPINFO} -k nanmean"),
    cpu("recipes: a sum of integers wraps in their type", f"{R}/reductions.py",
        '"i64" if dtype is None and x.type not in FLOATS else dtype', "dtype", f"{OPINFO} -k sum"),
    cpu("recipes: keepdim has its ones behind the other axes", f"{R}/_folding.py",
        "over = tuple(place[axis] for axis in range(rank) if axis in place)", "over = tuple(sorted(place.values()))",
        f"{FOLDS} -k any_axes"),
    cpu("recipes: elements are joined before they are converted", f"{R}/_folding.py",
        "w.round_to(made, wanted) if wanted in NARROW and wanted != given else made", "made", f"{FOLDS} -k rounded"),
    cpu("recipes: eps is added to the root", f"{R}/norms.py", '/ count + draft.number("eps", eps, x.type))',
        '/ count) + draft.number("eps", eps, x.type)', f"{FOLDS} -k norms"),
    cpu("recipes: a mean of cross entropies is not by weight", f"{R}/class_losses.py", "entropy.total(factor) if",
        "entropy.total(one(loss.type)) if", f"{FOLDS} -k cross_entropy"),
    cpu("recipes: an ignored class counts", f"{R}/class_losses.py", "(w.select(used, node, zero(input.type)) for", "(node for",
        f"{FOLDS} -k cross_entropy"),
    cpu("recipes: smoothing takes all of a class", f"{R}/class_losses.py", "(1.0 - smoothing) * loss + smoothing",
        "loss + smoothing", f"{FOLDS} -k cross_entropy"),
    cpu("recipes: a label behind the end counts", f"{R}/class_losses.py", "given = label < end", "given = at >= 0",
        f"{FOLDS} -k each_reduction"),
    cpu("recipes: a mask hides what it shows", f"{R}/reductions.py", "else w.select(there, x, instead)",
        "else w.select(there, instead, x)", f"{OPINFO} -k masked"),
    cpu("recipes: the place of a minimum is that of a maximum", f"{R}/extremes.py", 'draft.join(f"arg{word}", number, part)',
        'draft.join("argmax", number, part)', f"{OPINFO} -k argmin"),
    cpu("recipes: bits are cut, not rounded", f"{R}/lax_folds.py", "size + (odd + ((1 << (cut - 1)) - 1))", "size", LAX),
    cpu("recipes: an index into an input without elements reads 0", f"{R}/_draft.py",
        "if isinstance(outside, str) and 0 in given.shape and 0 not in self.shape:", "if False:", f"{OWN} -k by_name"),
    cpu("programs: the two zeros are one number of a plan", "opfacade/programs/fields.py",
        "and (self.value != 0 or math.copysign(1, self.value) == math.copysign(1, other.value))", "", f"{OWN} -k zeros"),
    cpu("programs: a call of @elementwise takes the plan of the other zero", "opfacade/plans/_traced.py",
        "number == 0 and math.copysign(1, number) < 0", "False", f"{TRACED} -k zeros"),
    cpu("programs: a number beside f64 is an f32 alone", "opfacade/plans/_traced.py", 'if own == "f32":', "if True:",
        f"{TRACED} -k type_of_the_tensors"),
    cpu("programs: a name that no tensor has is dropped", "opfacade/plans/_program_args.py", "if name not in operand",
        "if False", f"{MAPS} -k no_tensor_has"),
    cpu("programs: a read of nothing gives 1", "opfacade/programs/evaluate.py",
        "source.new_zeros(beyond.shape)", "source.new_ones(beyond.shape)", f"{MAPS} -k without_elements"),
    cpu("bits: NaN keeps its payload", "opfacade/programs/integers.py", ".long().masked_fill(value.isnan(), quiet)", ".long()",
        LAX),
    cpu("functions: an error beyond the documented is fine", "opfacade/testing/families/_functions.py",
        "() if most <= documented else", "() if most >= 0 else", FUNCTIONS),
    cpu("functions: NaN for a number is no error", "opfacade/testing/families/_functions.py",
        'apply("select", apply("isnan", found), inf, found)', 'apply("select", apply("isnan", found), zero, found)', FUNCTIONS),
    cpu("functions: a measured error is above the documented", "opfacade/programs/ulps.py", "return min(float(single),",
        "return max(float(single),", FUNCTIONS),
    cpu("functions: an error measured on one architecture is promised on all", "opfacade/programs/ulps.py",
        "if tried != sm_version or function", "if function", f"{FUNCTIONS} -k alone"),
)  # fmt: skip
