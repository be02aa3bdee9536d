"""The language: accepted and refused programs, one object for equal parts, and one text and digest per graph."""

import copy
import json
import pickle
import sys

import pytest

from opfacade.errors import DescriptorError
from opfacade.programs import text
from opfacade.programs.expression import Node, apply, constant, coord, ordered, read, scalar, stage, value
from opfacade.programs.operations import OPERATIONS
from opfacade.programs.types import TYPES
from opfacade.programs.words import exp, f32, i32, select

X, Y = value("x", "f32"), value("y", "f32")
OF = {kind: value("x", kind) for kind in TYPES}


def refused(make, path, *words):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.code == "OPF-D007"
    assert caught.value.issues[0].argument == path
    assert all(word in str(caught.value) for word in words), str(caught.value)


def again(*values):
    """Write to JSON and read again."""
    told = json.loads(json.dumps(text.text_of(values)._asdict()))
    lets = text.lets_from(told["lets"])
    return [text.node_from(one, lets) for one in told["values"]]


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_takes_its_types_and_no_others(op):
    known = OPERATIONS[op].signatures
    for types, gives in known.items():
        assert apply(op, *(OF[kind] for kind in types)).type == gives
    for types in [("f32",), ("bool",), ("i64", "u64"), ("f32", "f64"), ("bool", "f32", "i32"), ("i32", "i32")]:
        if types not in known:
            refused(
                lambda types=types: apply(op, *(OF[kind] for kind in types)), "expression", f"{op} of", f"({', '.join(types)})"
            )


def test_equal_parts_are_one_object():
    assert exp(X + 1) is exp(X + 1.0)
    assert exp(X + 1) is not exp(Y + 1)
    assert constant(1, "i32") is not constant(1, "i64")
    assert constant(True, "bool") is not constant(1, "i32")
    assert constant(-0.0, "f32") is constant(0, "f32")
    assert constant("-0", "f32") is not constant(0, "f32")
    made = exp(X) * scalar("c")
    assert copy.deepcopy(made) is made
    assert pickle.loads(pickle.dumps(made)) is made
    assert again(made) == [made]


def test_a_node_does_not_change_and_is_made_by_functions_alone():
    with pytest.raises(AttributeError):
        X.type = "f64"
    with pytest.raises(TypeError):
        Node()
    with pytest.raises(TypeError, match="truth value"):
        bool(X < Y)


@pytest.mark.parametrize(
    ("make", "path", "word"),
    [
        (lambda: constant(2**31, "i32"), "value", "an i32 in"),
        (lambda: constant(-1, "u8"), "value", "an u8 in 0 .. 255"),
        (lambda: constant(True, "f32"), "value", "a number"),
        (lambda: constant(1, "bool"), "value", "type bool"),
        (lambda: constant(1e39, "f32"), "value", "range of f32"),
        (lambda: constant(10**400, "f64"), "value", "range of f64"),
        (lambda: constant(10**400, "f32"), "value", "range of f32"),
        (lambda: constant(1.5, "f16"), "type", "one of bool"),
        (lambda: value("1x", "f32"), "name", "a letter"),
        (lambda: coord(8), "axis", "0 .. 7"),
        (lambda: X + 10**39, "value", "range of f32"),
        (lambda: value("n", "i32") + 0.5, "value", "type i32"),
        (lambda: apply("code", X), "op", "a known operation"),
        (lambda: apply(["add"], X, X), "op", "a known operation"),
        (lambda: apply("add", 1.0, 2.0), "expression", "numbers alone"),
        (lambda: read("x", "f32", ()), "at", "1 to 8 places"),
        (lambda: read("x", "f32", (coord(0), value("n", "i32"))), "at.1", "i64"),
        (lambda: read("x", "f32", (apply("i64", exp(X)),)), "at.0", "without rounding errors"),
        (lambda: read("x", "f32", None), "at", "a list of 1 to 8 indices"),
        (lambda: read("x", "f32", (0,), coord(0)), "outside", "of type f32"),
        (lambda: read("x", "f32", (0,), "zzz"), "outside", "clamp, wrap, reflect or a value of type f32, got zzz"),
        (lambda: read("x", "i32", (0,), "nan"), "outside", "clamp, wrap, reflect or a value of type i32, got nan"),
        (lambda: read("x", "i32", (0,), 0.5), "outside", "a value of type i32"),
        (lambda: read("x", "f17", (0,), "zzz"), "type", "one of bool"),
        (lambda: stage(-1, "f32"), "index", "a stage"),
    ],
)
def test_what_has_no_meaning_is_refused_with_its_field(make, path, word):
    refused(make, path, word)


def spoiled(*path_and_value):
    """The text of x * y + exp(x), with one part of it changed."""
    told = json.loads(json.dumps(text.text_of([X * Y + exp(X)]).values[0]))
    *path, last, new = path_and_value
    inner = told
    for step in path:
        inner = inner[step]
    inner[last] = new
    return told


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (("args", 0, "op", "and"), "args.0"),
        (("args", 0, "args", 1, "kind", "code"), "args.0.args.1.kind"),
        (("args", 0, "args", 1, "name", "x); system(1"), "args.0.args.1.name"),
        (("args", 1, "args", []), "args.1.args"),
        (("args", 1, "args", [{"kind": "shared", "index": 0}]), "args.1.args.0.index"),
        (("args", 1, "code", "1"), "args.1.code"),
        (("args", 1, "args", 0, {"kind": "input", "name": "x"}), "args.1.args.0.type"),
        (("args", 1, "args", 0, 1.0), "args.1.args.0"),
        (("args", 1, "args", 0, {"kind": "constant", "type": "i32", "value": 1.5}), "args.1.args.0.value"),
    ],
)
def test_a_fault_in_a_text_is_told_with_the_path_to_its_node(change, path):
    refused(lambda: text.node_from(spoiled(*change)), path)


def test_a_shared_part_is_written_once_and_a_digest_is_of_the_graph():
    part = X / (1 + exp(-X))
    told = text.text_of([part * part + part])
    assert len(told.lets) == 1
    assert again(part * part + part)[0] is part * part + part
    tree = {
        "kind": "apply",
        "op": "mul",
        "args": [{"kind": "apply", "op": "neg", "args": [{"kind": "input", "name": "x", "type": "f32"}]}] * 2,
    }
    as_tree, written = text.node_from(tree), (-X) * (-X)
    assert text.digest({"y": as_tree}) == text.digest({"y": written})
    assert text.digest({"y": written}) != text.digest({"y": (-Y) * (-Y)})
    assert text.digest({"y": written}) != text.digest({"z": written})


def test_a_graph_that_is_a_huge_tree_is_small():
    wide = X
    for _ in range(30):
        wide = wide + wide * 0.5
    assert len(ordered([wide])) == 62
    assert again(wide)[0] is wide


def test_size_sharing_and_depth_are_limited():
    deep = X
    for _ in range(text.MAX_DEPTH - 1):
        deep = -deep
    assert again(deep)[0] is deep
    refused(lambda: text.text_of([-deep]), "expression", f"a depth of at most {text.MAX_DEPTH} nodes")
    many = [X + float(n) for n in range(text.MAX_NODES // 2 - 1)]
    assert text.text_of(many)
    refused(lambda: text.text_of([*many, Y + 1e6, Y + 1e7]), "expression", f"at most {text.MAX_NODES} nodes")
    shared = X
    for _ in range(text.MAX_LETS + 1):
        shared = shared + shared
    assert text.text_of([shared])
    refused(lambda: text.text_of([shared + shared]), "expression", f"at most {text.MAX_LETS} shared parts")


@pytest.mark.parametrize("depth", [100, 3000])
def test_nesting_without_end_is_refused_and_not_followed(depth):
    node = {"kind": "input", "name": "x", "type": "f32"}
    for _ in range(depth):
        node = {"kind": "apply", "op": "neg", "args": [node]}
    with pytest.raises(DescriptorError, match="a depth of at most"):
        text.node_from(node)


def test_exactness_is_that_of_all_parts():
    assert (X * Y + 1).exact
    assert not exp(X).exact
    assert not (exp(X) > 1).exact
    assert not select(exp(X) > 1, X, Y).exact
    assert i32(f32(i32(X))).exact


def test_a_known_node_costs_few_calls():
    """Five nodes: each is looked up, none is validated or created again."""
    made, calls = X / (1 + exp(-X)), []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        again = X / (1 + exp(-X))
    finally:
        sys.setprofile(None)
    assert again is made
    assert len(calls) < 100, calls
