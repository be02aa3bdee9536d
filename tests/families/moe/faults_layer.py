"""Faults in layers of experts: halves, biases, ranks, tensors between steps, bounds, and the reference of the parts."""

from tests.mutation.mutant import host

LAYER, REFERENCE = "tests/families/moe/test_layer.py", "tests/families/moe/test_reference.py"
WORKSPACE = "tests/families/moe/test_layer_workspace.py"
KERNELS = "tests/families/moe/test_layer_kernels.py"
LOOP = f"{LAYER} -k loop_over_rows"


def python(name, file, old, new, tests=LOOP):
    return host(f"experts: {name}", file, old, new, tests)


FAULTS = (
    python(
        "a tensor lies where one that is still read lies",
        "plans/_composites/steps.py",
        "first <= stop and begin <= last",
        "first < stop and begin < last",
        f"{WORKSPACE} -k lifetimes",
    ),
    python(
        "a tensor is free after its writer",
        "plans/_composites/steps.py",
        "held[name]._replace(last=at) if name in held else",
        "held[name] if name in held else",
        f"{WORKSPACE} -k lifetimes",
    ),
    python(
        "the workspace ends before the last tensor",
        "plans/_composites/steps.py",
        "if stop > begin and other in avoided:",
        "if other in avoided:",
        f"{WORKSPACE} -k lifetimes",
    ),
    python("halves are exchanged", "plans/_moe/layer.py", 'd.halves != "up_gate"', 'd.halves == "up_gate"'),
    python("the limit of ups is lost", "plans/_moe/layer.py", 'apply("maximum", apply("minimum", up, limit), -limit)', "up"),
    python(
        "both weights have the scales of the first",
        "plans/_moe/quantised.py",
        '"weight_scale": f"{weight}_scale"}',
        '"weight_scale": "up_scale"}',
        f"{LAYER} -k 8_bit",
    ),
    python(
        "rows of x are quantised past those that are held",
        "plans/_moe/quantised.py",
        "(1 if held is None else d.top_k)",
        "1",
        f"{LAYER} -k 8_bit",
    ),
    python(
        "the bound of 8 bits leaves their roundings out",
        "testing/families/_moe_quantised.py",
        "_HALF * (1 + 2.0**-20) * x.v.abs()",
        "0.0 * x.v.abs()",
        f"{LAYER} -k keeps_its_bound",
    ),
    python("beta is lost", "plans/_moe/layer.py", 'made * (up + constant(d.beta, "f32"))', "made * up"),
    python(
        "alpha of swiglu is that of gpt-oss",
        "plans/_moe/layer.py",
        '"alpha": 1.0 if d.alpha is None',
        '"alpha": 1.702 if d.alpha is None',
        f"{LAYER} -k loop_over_rows",
    ),
    python(
        "weights are on the output too",
        "plans/_moe/layer.py",
        'weighted, added = d.weights_at == "output",',
        "weighted, added = True,",
    ),
    python(
        "the second product has no bias",
        "plans/_moe/layer.py",
        '({"bias": "down_bias"} if d.bias',
        '({"bias": "up_bias"} if d.bias',
    ),
    python(
        "the shared expert lacks the operand add",
        "plans/_moe/layer.py",
        "k=d.shared_width, add=d.add)",
        "k=d.shared_width, add=False)",
    ),
    python(
        "experts of other ranks are taken",
        "plans/_moe/layer.py",
        "first_expert=d.first_expert, num_local",
        "first_expert=0, num_local",
    ),
    python(
        "a promise has the constants of the last step alone",
        "plans/_composites/composed.py",
        'f"{part.step.name}.{name}": value',
        'f"down.{name}": value',
        f"{LAYER} -k keeps_its_bound",
    ),
    python(
        "kernels of the last step alone are compiled",
        "plans/_composites/composed.py",
        "dict.fromkeys(spec for of_part in found for spec in of_part)",
        "list(found)[-1]",
        f"{KERNELS} -k without_duplicates",
    ),
    python(
        "a kernel of two steps is compiled twice",
        "plans/_composites/composed.py",
        "dict.fromkeys(spec for of_part in found for spec in of_part)",
        "spec for of_part in found for spec in of_part",
        f"{KERNELS} -k without_duplicates",
    ),
    python(
        "the first kernel alone is compiled ahead",
        "plan.py",
        "for spec in specs:\n",
        "for spec in specs[:1]:\n",
        f"{KERNELS} -k built_ahead",
    ),
    python(
        "a layer is built when its first kernel is",
        "plan.py",
        "cache_state_for_plan(*specs)",
        "cache_state_for_plan(specs[0])",
        f"{KERNELS} -k is_cached",
    ),
    python(
        "the first kernel of a layer names its code",
        "jit/__init__.py",
        "if len(digests) == 1 else",
        "if digests else",
        f"{KERNELS} -k digest_of_a_layer",
    ),
    python(
        "unknown compilers of one kernel are known of the layer",
        "jit/__init__.py",
        "if not all(found):",
        "if not any(found):",
        f"{KERNELS} -k digest_of_a_layer",
    ),
    python(
        "the id of a layer is of fewer steps where a compiler is too old",
        "plans/_composites/choices.py",
        "all(reason.code == COMPILER_TOO_OLD for",
        "all(False for",
        f"{KERNELS} -k too_old",
    ),
    python(
        "each step tells of the compiler",
        "plans/_composites/choices.py",
        "if reason.code == COMPILER_TOO_OLD:",
        "if not reason.code:",
        f"{KERNELS} -k too_old",
    ),
    python(
        "a step of another backend is taken",
        "plans/_composites/choices.py",
        "registry.candidates_for(kind) if one.backend == backend)",
        "registry.candidates_for(kind))",
        f"{KERNELS} -k dtype_without_a_product",
    ),
    python(
        "the id of a layer leaves its last step out",
        "plans/_composites/composed.py",
        "_digest(chosen(problem, backend, target).ids)",
        "_digest(chosen(problem, backend, target).ids[:2])",
        f"{KERNELS} -k another_sku",
    ),
    python(
        "a call that nothing checks goes to the bindings",
        "backends/cuda/composed.py",
        "        return _sound(problem, allow_build, workspace_bytes, operands).refuse_unsound\n",
        "        return lambda args, workspace: None\n",
        f"{KERNELS} -k unchecked_call",
    ),
    python(
        "an id of the reference's sort is not looked at",
        "backends/reference/moe.py",
        "own = (local >= 0) & (local < d.local)",
        "own = local < d.local",
        f"{REFERENCE} -k stable",
    ),
    python(
        "rows of the reference's sort are unstable",
        "backends/reference/moe.py",
        "argsort(dim=0, stable=True)[: int(own.sum())]",
        "flip(0).argsort(dim=0, stable=True)[: int(own.sum())]",
        f"{REFERENCE} -k stable",
    ),
    python(
        "a place out of range is read",
        "backends/reference/moe.py",
        "((place >= 0) & (place < d.total_num_rows * d.top_k))",
        "(place >= 0)",
        f"{REFERENCE} -k places_out_of_range",
    ),
    python(
        "a wrong choice passes",
        "testing/families/_routing.py",
        'return "" if got == want else',
        'return "" if set(got) == set(want) else',
        f"{REFERENCE} -k wrong_choice",
    ),
    python(
        "the bound of a layer leaves the roundings of rows out",
        "testing/families/_moe_layer.py",
        "most, c).hard + x.r @ w.abs()",
        "most, c).hard",
        f"{LAYER} -k keeps_its_bound",
    ),
)
