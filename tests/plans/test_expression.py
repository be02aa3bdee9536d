"""The expression language: accepted and refused expressions, serialisation, and the restriction to checked identifiers and
numbers."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade import errors
from opfacade.errors import ArgumentTypeError, DescriptorError
from opfacade.plans._attention.expression import (
    MAX_DEPTH,
    MAX_NODES,
    SIGNATURES,
    Apply,
    Constant,
    Input,
    Parameter,
    apply,
    rounded,
)
from opfacade.plans._attention.variant import (
    Variant,
    exp2,
    f32,
    floor,
    head,
    i32,
    kv_pos,
    log2,
    per_head,
    per_row,
    q_pos,
    score,
    select,
    tanh,
)
from tests.support import expressions

ANY = {"f32": per_head("x"), "i32": per_row("y"), "bool": Constant(type="bool", value=True)}


def refused(make, *words):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    return caught.value


@pytest.mark.parametrize("op", SIGNATURES)
def test_an_operation_accepts_exactly_its_types(op):
    for types, gives in SIGNATURES[op].items():
        assert apply(op, *(ANY[kind] for kind in types)).facts().type == gives
    for types in [("f32",), ("bool", "bool"), ("f32", "i32"), ("i32", "bool", "i32"), ("bool", "f32", "i32")]:
        if types not in SIGNATURES[op]:
            refused(lambda types=types: apply(op, *(ANY[kind] for kind in types)), f"{op} of", f"not of ({', '.join(types)})")


def test_the_operations_and_types_that_attention_supports():
    """The language of programs has more operations and types. The test fails if one is added or removed here."""
    numbers = ("add", "sub", "mul", "min", "max", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne")
    two = {op: {("f32", "f32"), ("i32", "i32")} for op in numbers}
    one = {op: {("f32",)} for op in ("floor", "sqrt", "exp2", "log2", "tanh", "i32")}
    rest = {
        "neg": {("f32",), ("i32",)}, "abs": {("f32",), ("i32",)}, "div": {("f32", "f32")}, "floordiv": {("i32", "i32")},
        "mod": {("i32", "i32")}, "and": {("bool", "bool")}, "or": {("bool", "bool")}, "not": {("bool",)}, "f32": {("i32",)},
        "select": {("bool", kind, kind) for kind in ("f32", "i32", "bool")},
    }  # fmt: skip
    assert {op: set(known) for op, known in SIGNATURES.items()} == two | one | rest


def test_python_operators_build_the_expected_nodes():
    built = (score + 1) * 2 - score / 4.0, kv_pos // 2 % 3, -abs(q_pos), 1.5 - score, 2 / score
    assert [b.facts().type for b in built] == ["f32", "i32", "i32", "f32", "f32"]
    truth = (kv_pos <= q_pos) & ~(kv_pos < 3) | (head > 1) | (q_pos >= 7)
    assert truth.facts().type == "bool"
    assert (kv_pos + 1).args[1].same(Constant(type="i32", value=1))
    assert (score + 1).args[1].same(Constant(type="f32", value=1.0))
    assert ((kv_pos < 3) & True).args[1].same(Constant(type="bool", value=True))


@pytest.mark.parametrize("rough", [score, exp2(per_head("x")), log2(per_head("x")), tanh(per_head("x")), score * 0.0])
@pytest.mark.parametrize("jump", [lambda x: x > 0, lambda x: x < 0, floor, i32, lambda x: apply("eq", x, 1.0)])
def test_discontinuous_operations_accept_only_exact_operands(rough, jump):
    assert not rough.facts().exact
    assert "it jumps" in str(refused(lambda: jump(rough)))
    assert jump(per_head("x")).facts().exact


def test_select_between_inexact_values_is_accepted():
    assert select(kv_pos < q_pos, score, tanh(score)).facts() == ("f32", False, 7, 3)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("i32", 2**31), ("i32", -(2**31) - 1), ("i32", 1.0), ("i32", True), ("f32", math.inf), ("f32", math.nan), ("f32", 1e39),
        ("f32", 10**400), ("f32", -(10**400)), ("i32", 10**400),
        ("f32", True), ("f32", "1"), ("bool", 1), ("f16", 1.0),
    ],
)  # fmt: skip
def test_a_constant_of_an_invalid_type_is_refused(type, value):
    refused(lambda: Constant(type=type, value=value), "type" if type == "f16" else "value")


def test_a_float_constant_is_rounded_to_f32_and_minus_zero_becomes_zero():
    assert Constant(type="f32", value=0.1).value == float(np.float32(0.1))
    assert Constant(type="f32", value=-0.0).canonical_json() == Constant(type="f32", value=0).canonical_json()
    assert rounded(3.4028235e38) == float(np.finfo(np.float32).max)


@settings(max_examples=80, deadline=None)
@given(st.one_of(expressions.ints(3), expressions.floats(3), expressions.truths(3), expressions.smooth(3)))
def test_json_and_pickle_round_trips_are_identity(expression):
    again = type(expression).model_validate_json(expression.model_dump_json())
    assert again.same(expression)
    assert (hash(again), again.digest()) == (hash(expression), expression.digest())
    assert again.model_dump_json() == expression.model_dump_json()
    assert pickle.loads(pickle.dumps(expression)).same(expression)


INJECTED = ["x); system(1", "x\n", "1x", "", "x" * 33, "x y", "x::y", "x\0", "*/", "\uff58", "x/../y", "{{ x }}", "é"]


@pytest.mark.parametrize("name", INJECTED)
def test_a_name_that_is_not_an_identifier_is_refused(name):
    refused(lambda: Parameter(name=name, per="head"), "name")
    refused(lambda: Input(name=name), "name")
    refused(lambda: Apply(op=name, args=(score,)), "op")
    text = json.dumps({"kind": "apply", "op": "neg", "args": [{"kind": "parameter", "name": name, "per": "head"}]})
    error = refused(lambda: Apply.model_validate_json(text), "name")
    assert error.issues[0].argument == "args.0.parameter.name"


@pytest.mark.parametrize(
    "node",
    [
        {"kind": "code", "text": "1"}, {"kind": "input", "name": "score", "code": "1"}, {"name": "score"}, "score", 1.0, None,
        [],
        {"kind": "apply", "op": "neg", "args": []}, {"kind": "apply", "op": "neg", "args": "score"},
        {"kind": "apply", "op": "add", "args": [{"kind": "input", "name": "score"}] * 4},
    ],
)  # fmt: skip
def test_a_node_of_an_unknown_form_is_refused(node):
    refused(lambda: Apply.model_validate({"op": "neg", "args": (node,)}), "args.0")


def test_a_type_error_names_the_path_to_the_node():
    inner = {
        "kind": "apply",
        "op": "neg",
        "args": [{"kind": "apply", "op": "not", "args": [{"kind": "input", "name": "head"}]}],
    }
    error = refused(lambda: Apply.model_validate_json(json.dumps(inner)), "not of (bool), not of (i32)")
    assert error.issues[0].argument == "args.0.apply"


def chain(depth):
    node = {"kind": "input", "name": "score"}
    for _ in range(depth):
        node = {"kind": "apply", "op": "neg", "args": [node]}
    return node


def test_size_and_depth_are_limited():
    assert Apply.model_validate_json(json.dumps(chain(MAX_DEPTH - 1))).facts().depth == MAX_DEPTH
    refused(lambda: Apply.model_validate_json(json.dumps(chain(MAX_DEPTH))), f"depth {MAX_DEPTH}")
    wide = score
    for _ in range(6):
        wide = wide + wide
    assert wide.facts().nodes == MAX_NODES - 1
    refused(lambda: wide + wide, f"at most {MAX_NODES} nodes")


@pytest.mark.parametrize("depth", [100, 400, 3000])
def test_unlimited_nesting_is_refused_without_recursion(depth):
    refused(lambda: Apply.model_validate(chain(depth)))
    text = '{"kind":"apply","op":"neg","args":[' * depth + '{"kind":"input","name":"score"}' + "]}" * depth
    refused(lambda: Apply.model_validate_json(text))


def test_conversions_have_the_requested_type():
    assert f32(kv_pos).facts().type == "f32"
    refused(lambda: f32(score), "f32 of (i32)")
    refused(lambda: kv_pos + 0.5, "(i32, f32)")


@pytest.mark.parametrize("right", [q_pos, 3, 1.0])
def test_comparisons_by_python_operators_are_refused_with_a_remedy(right):
    with pytest.raises(errors.ArgumentTypeError, match=r"Use equal\(a, b\)"):
        _ = kv_pos == right
    with pytest.raises(errors.ArgumentTypeError, match=r"Use not_equal\(a, b\)"):
        _ = kv_pos != right
    with pytest.raises(TypeError, match=r"a \* a, or exp2"):
        _ = score**2


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: score + kv_pos, "Use f32(kv_pos)."),
        (lambda: (kv_pos - q_pos) * score, "Use f32(kv_pos - q_pos)."),
        (lambda: score > 0, "of the score use minimum, maximum or a smooth function."),
    ],
)
def test_a_refused_operation_names_the_replacement(make, hint):
    assert hint in str(refused(make))


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (score - per_head("slope") * log2(1.0 + f32(q_pos - kv_pos)), "score - slope * log2(1.0 + f32(q_pos - kv_pos))"),
        ((score + 1) * 2 - score / 4.0, "(score + 1.0) * 2.0 - score / 4.0"),
        (score - (score - score), "score - (score - score)"),
        (-abs(q_pos) // 2, "-abs(q_pos) // 2"),
        ((kv_pos <= q_pos) & ~(kv_pos < 3) | (head > 1), "(kv_pos <= q_pos) & ~(kv_pos < 3) | (head > 1)"),
        (apply("eq", kv_pos, -3), "equal(kv_pos, -3)"),
        (kv_pos - apply("min", q_pos, 2), "kv_pos - min_(q_pos, 2)"),
        (apply("maximum", score, 0.0), "maximum(score, 0.0)"),
    ],
)
def test_an_expression_is_printed_as_it_is_written(node, text):
    assert str(node) == repr(node) == text


def test_variants_with_equal_expressions_are_equal():
    one, again, other = (Variant(logits=score * factor) for factor in (2.0, 2.0, 3.0))
    assert one == again != other
    assert len({one, again, other}) == 2
    assert one != None  # noqa: E711  any value may be compared
    assert str(Variant(logits=score * 2.0, mask=kv_pos < 3)) == "logits=score * 2.0, mask=kv_pos < 3"
    named = per_head("kv_pos")
    assert not named.same(kv_pos)
    assert str(named) == str(kv_pos)


def test_a_value_that_is_not_an_expression_is_refused_with_a_remedy():
    error = refused(lambda: Variant(logits="score"))
    assert "Write an expression with the names of opfacade.variant" in str(error)


@pytest.mark.parametrize("ask", [bool, lambda x: x and x, lambda x: 1 if x else 2, lambda x: 0 <= kv_pos < 3])
def test_an_expression_has_no_truth_value(ask):
    with pytest.raises(ArgumentTypeError, match=r"no truth value, got one. Use select, &, \| and ~.* \[OPF-D040\]"):
        ask(kv_pos > 1)
