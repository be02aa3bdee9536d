"""Each named op has an oracle in this folder: the formula of its page, in plain torch, and no code of the library."""

import ast
import dataclasses
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from opfacade import Target
from opfacade.plan import Plan
from opfacade.select import registry
from opfacade.testing.inputs import DrawnLengths, make_args
from tests.oracles.near import FLOATS, Near, stored, wide, wrong

HERE = Path(__file__).parent
JUDGED = ("opfacade.backends", "opfacade.testing.families", "opfacade.programs", "opfacade.testing.numerics")
# Ops without an oracle, and the reason.
WITHOUT = {
    "map": "its formula is the caller's program; tests/programs judges programs by hand",
    "fold": "its formula is the caller's program; tests/programs judges programs by hand",
}


def oracle(op):
    """The module of an op: its file has the name of the op, or of its family; None if there is none."""
    for name in (op, registry.descriptor_types()[op].family()):
        if op not in WITHOUT and find_spec(f"tests.oracles.{name}") is not None:
            return import_module(f"tests.oracles.{name}")
    return None


def has_oracle(op):
    return any(find_spec(f"tests.oracles.{name}") for name in (op, registry.descriptor_types()[op].family()))


EXAMPLES = [example for example in registry.examples() if oracle(example.op) is not None]
FIRST = {example.op: number for number, example in reversed(list(enumerate(EXAMPLES)))}


def tensors(problem, args):
    """The operands of a call by name, without absent ones."""
    return {name: tensor for name in problem.operands() if (tensor := getattr(args, name)) is not None}


def copied(problem, args):
    """The same call with its own tensors, which keep their strides."""
    fresh = {}
    for name, tensor in tensors(problem, args).items():
        fresh[name] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        fresh[name].copy_(tensor)
    return dataclasses.replace(args, **fresh)


@cache
def ran(number):
    """(the call before, the call after, the expected results) of an example."""
    problem = EXAMPLES[number]
    module = oracle(problem.op)
    lengths = DrawnLengths()
    if getattr(problem, "num_valid", False):  # all rows but the last one
        size = next(name for name in ("shape", "total_num_rows", "batch_size") if hasattr(problem, name))
        rows = getattr(problem, size)
        lengths = DrawnLengths(valid=(rows[0] if size == "shape" else rows) - 1)
    args = make_args(problem, seed=number - FIRST[problem.op], lengths=lengths)  # independent of the examples of other ops
    args = module.settled(problem, args) if hasattr(module, "settled") else args
    before = copied(problem, args)
    Plan.select(problem, target=Target.cpu()).run(args)
    return before, args, module.expected(problem, copied(problem, before))


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda n: f"{EXAMPLES[n].op}-{n - FIRST[EXAMPLES[n].op]}")
def test_the_reference_computes_the_formula(number):
    problem = EXAMPLES[number]
    before, args, want = ran(number)
    written = {name for name, spec in problem.operands().items() if spec.written and getattr(args, name) is not None}
    assert set(want) == written
    for name, tensor in tensors(problem, args).items():
        if name in want:
            assert wrong(tensor, want[name]) == 0, name
        else:
            assert wrong(tensor, getattr(before, name)) == 0, name


@pytest.mark.parametrize("op", sorted(registry.descriptor_types()))
def test_each_op_has_an_oracle_or_a_reason(op):
    if op in WITHOUT:
        assert WITHOUT[op]
    else:
        assert callable(oracle(op).expected)
        assert op in FIRST


def test_the_reasons_name_ops():
    assert set(WITHOUT) <= set(registry.descriptor_types())


def test_oracles_import_no_judged_code():
    """By syntax; also a support that an oracle imports. The oracles import nothing of the package."""
    seen, left = set(), sorted(p for p in HERE.glob("*.py"))
    while left:
        path = left.pop()
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                assert path.name == "test_oracles.py" or name.split(".")[0] != "opfacade", (path, name)
                assert not any(name == judged or name.startswith(judged + ".") for judged in JUDGED), (path, name)
                own = HERE.parents[1].joinpath(*name.split(".")).with_suffix(".py")
                if name.startswith("tests.") and own.is_file() and own not in seen:
                    left.append(own)


@pytest.mark.parametrize("op", sorted(FIRST))
def test_a_changed_element_is_rejected(op):
    """Each written operand of the op's first example, with the last element that the op wrote changed."""
    before, args, want = ran(FIRST[op])
    for name, wanted in want.items():
        got = getattr(args, name).clone()
        place = last_written(getattr(before, name), got)
        if place is None:
            continue
        assert wrong(got, wanted) == 0
        got[place] = changed(got, wanted, place)
        assert wrong(got, wanted) == 1, name


def last_written(old, new):
    old, new = wide(old), wide(new)
    finite = (new.isfinite() & ~(old == new)).nonzero()
    return tuple(finite[-1].tolist()) if len(finite) else None


def changed(got, wanted, place):
    """An element that is wrong by three times the tolerance, towards 0 unless the element is below that."""
    element = wide(got)[place]
    if got.dtype not in FLOATS:
        off = 1 if isinstance(wanted, torch.Tensor) else 3 * wanted.tolerance(got.dtype)[place].ceil()
        return element - off if element > 0 else element + off
    exact = Near(wide(got), torch.zeros_like(wide(got)))
    off = 3 * (exact if isinstance(wanted, torch.Tensor) else wanted).tolerance(got.dtype)[place]
    return stored(element - off if element > 0 else element + off, got.dtype)
