"""The reference evaluator against an oracle of numpy and mpmath: every operation at its edges, random programs, reads."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade.programs import text
from opfacade.programs.evaluate import Evaluation, Values, carried, stored, torch_type
from opfacade.programs.expression import apply, constant, coord, extent, read, scalar, value
from opfacade.programs.operations import FUNCTIONS, OPERATIONS
from tests.support import naive_program
from tests.support.program_values import all_pairs, numbers_of, of_type, tensor_of

NAMES = "abcd"
WAVES = ("bessel_y0", "bessel_y1", "bessel_j0", "bessel_j1")
NEAR = ("lgamma", "bessel_i0", "bessel_i1", "erfcx")
EXACT = [(op, types) for op, known in OPERATIONS.items() if known.exact for types in known.signatures]


def told(*roots):
    found = text.text_of(roots)
    return found.lets, found.values


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("bool", torch.bool), ("f32", torch.float32), ("f64", torch.float64), ("i32", torch.int64), ("u64", torch.int64)],
)
def test_a_type_is_carried_by_its_torch_dtype(kind, dtype):
    assert torch_type(kind) is dtype
    assert carried(torch.tensor([True, False]), kind).dtype is dtype


@pytest.mark.parametrize(("op", "types"), EXACT, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_an_exact_operation_has_the_bits_of_the_oracle_at_all_edges(op, types):
    root = apply(op, *(value(name, kind) for name, kind in zip(NAMES, types, strict=False)))
    columns = all_pairs(types)
    leaves = {("input", name): tensor_of(column, kind) for name, column, kind in zip(NAMES, columns, types, strict=False)}
    got = numbers_of(Evaluation(Values(leaves)).own(root), root.type)
    lets, (tree,) = told(root)
    for i, found in enumerate(got):
        given = {("input", name): column[i] for name, column in zip(NAMES, columns, strict=False)}
        want = naive_program.Element(lets, given).exact(tree)
        assert naive_program.bit_pattern(found, root.type) == naive_program.bit_pattern(want, root.type), (given, found, want)


def real(x):
    return float(x) if not isinstance(x, mpmath.mpc) else math.nan


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_a_function_is_the_oracles_to_a_few_units_of_f64(op, kind):
    count = len(next(iter(OPERATIONS[op].signatures)))
    inside = [0.1, 0.5, 0.999, 1.0, 1.25, 2.0, 3.7, 11.0, 85.0, 1e-3, 1e-30] + ([1e4, 1e30] if op not in NEAR else [1e4])
    inside += [] if op in ("log", "log2", "log10", "rsqrt", "acosh", "pow", "lgamma", *WAVES) else [-x for x in inside]
    columns = [inside] if count == 1 else [[a for a in inside for _ in inside], inside * len(inside)]
    numbers = [[naive_program.FLOAT[kind](x) for x in column] for column in columns]
    root = apply(op, *(value(name, kind) for name in NAMES[:count]))
    leaves = {("input", name): tensor_of(column, kind) for name, column in zip(NAMES, numbers, strict=False)}
    got = Evaluation(Values(leaves), torch.float64).in_real(root).tolist()
    lets, (tree,) = told(root)
    with mpmath.workdps(40):
        for i, found in enumerate(got):
            given = {("input", name): column[i] for name, column in zip(NAMES, numbers, strict=False)}
            want = real(naive_program.Element(lets, given).real(tree))
            if math.isfinite(want) and abs(want) > 1e-300:
                far = 4096 if op in ("lgamma", "pow", "tan", "cosh", "sinh") else 16  # where torch's own f64 is less exact
                least = 1e-3 if op == "lgamma" else 1.0 if op in WAVES else 0
                assert abs(found - want) <= far * 2**-53 * max(abs(want), least), (given, found, want)
            elif not math.isfinite(want) and not abs(found) > 1e300:
                assert math.isnan(want) == math.isnan(found), (given, found, want)


@pytest.mark.parametrize(
    ("op", "given", "want"),
    [
        ("exp", -math.inf, 0.0), ("log", 0.0, -math.inf), ("log", -1.0, math.nan), ("rsqrt", 0.0, math.inf),
        ("rsqrt", -0.0, -math.inf),
        ("tanh", math.inf, 1.0), ("erf", -math.inf, -1.0), ("erfc", math.inf, 0.0), ("lgamma", 0.0, math.inf),
        ("lgamma", -2.0, math.inf), ("lgamma", -math.inf, math.inf), ("cbrt", -math.inf, -math.inf), ("cbrt", -8.0, -2.0),
        ("atanh", 1.0, math.inf), ("erfinv", -1.0, -math.inf), ("erfinv", 1.5, math.nan), ("ndtri", 0.0, -math.inf),
        ("ndtri", 1.0, math.inf), ("ndtri", 0.5, 0.0), ("ndtri", -0.1, math.nan), ("erfcx", math.inf, 0.0),
        ("erfcx", -math.inf, math.inf), ("bessel_i0", -math.inf, math.inf), ("bessel_i1", -math.inf, -math.inf),
        ("bessel_i0", 0.0, 1.0), ("bessel_j0", 0.0, 1.0), ("bessel_j1", -math.inf, 0.0), ("bessel_j0", math.inf, 0.0),
        ("bessel_y0", 0.0, -math.inf), ("bessel_y1", -1.0, math.nan), ("bessel_y1", math.inf, 0.0),
        ("asin", 1.5, math.nan), ("sin", math.inf, math.nan), ("exp", math.nan, math.nan),
    ],
)  # fmt: skip
def test_special_values_of_functions(op, given, want):
    got = float(Evaluation(Values({("input", "x"): torch.tensor(given)})).own(apply(op, value("x", "f32"))))
    assert got == want or (math.isnan(got) and math.isnan(want))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8_e4m3", "f8_e5m2"])
def test_a_store_rounds_once_also_from_f64(dtype):
    near = [
        1.0,
        1 + 2**-11,
        1 + 2**-9,
        1 + 2**-4,
        1 + 2**-3,
        0.1,
        65519.99,
        65520.0,
        464.0,
        463.99,
        61439.9,
        1e-8,
        2.98e-8,
        2**-10,
        2**-17,
        3.39e38,
    ]
    cases = [x * (1 + e) for x in near for e in (0, 2**-40, -(2**-40), 2**-26, -(2**-26))]
    cases += [-x for x in cases] + [0.0, math.inf, -math.inf, math.nan]
    got = stored(torch.tensor(cases, dtype=torch.float64), dtype).float().tolist()
    for case, found in zip(cases, got, strict=True):
        want = naive_program.narrowed(case, dtype)
        assert naive_program.bit_pattern(found, "f64") == naive_program.bit_pattern(want, "f64"), (case, found, want)


LEAVES = {"f32": ("x", "y"), "i32": ("n",), "u64": ("w",), "bool": ("t",)}


@st.composite
def programs(draw):
    """A list of exact nodes, each built from earlier ones; the last ones are results."""
    nodes = [value(name, kind) for kind, names in LEAVES.items() for name in names]
    nodes += [constant(3, "i32"), constant(0.1, "f32"), coord(0), scalar("s", "f32")]
    for _ in range(draw(st.integers(3, 25))):
        op = draw(st.sampled_from(sorted(op for op, known in OPERATIONS.items() if known.exact and op != "bits")))
        have = {node.type for node in nodes}
        fits = [types for types in OPERATIONS[op].signatures if set(types) <= have]
        if fits:
            types = draw(st.sampled_from(fits))
            nodes.append(apply(op, *(draw(st.sampled_from([n for n in nodes if n.type == kind])) for kind in types)))
    return nodes[-3:]


@settings(max_examples=150, deadline=None)
@given(programs(), st.data())
def test_random_exact_programs_have_the_bits_of_the_oracle(roots, data):
    kinds = {name: kind for kind, names in LEAVES.items() for name in names}
    given = {("input", name): data.draw(st.sampled_from(of_type(kind))) for name, kind in kinds.items()}
    given |= {("coord", 0): 5, ("scalar", "s"): np.float32(data.draw(st.sampled_from([0.3, -2.0, 1e30])))}
    typed = {key: kinds.get(key[1], "i64" if key[0] == "coord" else "f32") for key in given}
    evaluation = Evaluation(Values({key: tensor_of([one], typed[key])[0] for key, one in given.items()}))
    lets, trees = told(*roots)
    for root, tree in zip(roots, trees, strict=True):
        (got,) = numbers_of(evaluation.own(root)[None], root.type)
        want = naive_program.Element(lets, given).exact(tree)
        assert naive_program.bit_pattern(got, root.type) == naive_program.bit_pattern(want, root.type)


@pytest.mark.parametrize("outside", ["clamp", "wrap", "reflect", 7.5])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_read_beyond_its_input_does_what_outside_says(outside, size):
    source = torch.arange(1.0, size + 1)
    root = read("x", "f32", [coord(0) - 12], outside)
    places = torch.arange(25)
    got = Evaluation(Values({("input", "x"): source, ("coord", 0): places})).own(root).tolist()
    lets, (tree,) = told(root)
    for i, found in enumerate(got):
        element = naive_program.Element(lets, {("input", "x"): source.numpy(), ("coord", 0): i}, {"x": (size,)})
        assert found == element.exact(tree)


def test_a_read_at_places_of_an_input_is_a_gather_of_any_index():
    table, index = torch.randn(5, 3), torch.tensor([4, 0, -1, 5, 2**31 - 1, -(2**31)], dtype=torch.int32)
    root = read("table", "f32", [apply("i64", value("index", "i32")), coord(1)], 0.0)
    leaves = {("input", "table"): table, ("input", "index"): index[:, None], ("coord", 1): torch.arange(3)[None]}
    got = Evaluation(Values(leaves)).own(root)
    assert torch.equal(got, torch.cat([table[[4, 0]], torch.zeros(4, 3)]))


def test_extents_and_empty_inputs_have_values():
    root = apply("f32", extent(0)) * read("x", "f32", [coord(0)], 2.0)
    leaves = {("extent", 0): torch.tensor(3), ("coord", 0): torch.arange(3), ("input", "x"): torch.zeros(0)}
    assert Evaluation(Values(leaves)).own(root).tolist() == [6.0, 6.0, 6.0]


def test_bits_are_the_published_vectors_of_philox():
    """Random123's known answers of philox4x32-10 for a zero and for a full counter and key."""
    full = 2**64 - 1
    for seed, counter, stream, words in [
        (0, 0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (full, full, full, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ]:
        for word, want in enumerate(words):
            columns = [tensor_of([n], "u64") for n in (seed, counter, word, stream)]
            leaves = {("input", name): column for name, column in zip(NAMES, columns, strict=True)}
            root = apply("bits", *(value(name, "u64") for name in NAMES))
            assert Evaluation(Values(leaves)).own(root).tolist() == [want]
            assert naive_program.philox(seed, counter, word, stream) == want


def test_float_arithmetic_in_f64_keeps_exact_parts_in_their_type():
    x = torch.tensor([0.1, 16777217.0])
    sums = value("x", "f32") + 1e-9
    leaves = Values({("input", "x"): x})
    assert torch.equal(Evaluation(leaves, torch.float64).in_real(sums), (x + 1e-9).double())
    rough = apply("exp", value("x", "f32")) + 1e-9
    assert Evaluation(leaves, torch.float64).in_real(rough)[0] == math.exp(float(x[0])) + float(np.float32(1e-9))
