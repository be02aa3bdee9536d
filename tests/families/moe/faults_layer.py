"""Faults in layers of experts: halves, biases, ranks, tensors between steps, bounds, and the reference of the parts."""

from tests.mutation.mutant import host

LAYER, REFERENCE = "tests/families/moe/test_layer.py", "tests/families/moe/test_reference.py"
LOOP = f"{LAYER} -k loop_over_rows"


def python(name, file, old, new, tests=LOOP):
    return host(f"experts: {name}", file, old, new, tests)


FAULTS = (
    python(
        "a tensor lies where one that is still read lies",
        "plans/_steps.py",
        "one.first <= other.last and other.first <= one.last",
        "one.first < other.last and other.first < one.last",
        f"{LAYER} -k needed_together",
    ),
    python(
        "a tensor is free after its writer",
        "plans/_steps.py",
        "held[name]._replace(last=at) if name in held else",
        "held[name] if name in held else",
        f"{LAYER} -k needed_together",
    ),
    python(
        "the workspace ends before the last tensor",
        "plans/_steps.py",
        "at = max(at, stop)",
        "at = stop",
        f"{LAYER} -k needed_together",
    ),
    python("halves are exchanged", "plans/_moe/layer.py", 'd.halves != "up_gate"', 'd.halves == "up_gate"'),
    python("the limit of ups is lost", "plans/_moe/layer.py", 'apply("maximum", apply("minimum", up, limit), -limit)', "up"),
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
        "plans/_composed.py",
        'f"{part.step.name}.{name}": value',
        'f"down.{name}": value',
        f"{LAYER} -k keeps_its_bound",
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
        f"{REFERENCE} -k reach_no_memory",
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
