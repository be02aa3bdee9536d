"""The table of edges in docs/programs.md agrees with the evaluation and the oracle."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from opfacade.programs import text
from opfacade.programs.evaluate import Evaluation, Values
from opfacade.programs.expression import apply, value
from opfacade.programs.operations import FUNCTIONS
from tests.support import naive_program
from tests.support.program_values import numbers_of, tensor_of

PAGE = Path(__file__).resolve().parents[2] / "docs/programs.md"
ROWS = re.findall(r"^\| `(\w+)\((.*)\)` \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)


def parsed(told):
    kind, number = told.split()
    if kind in ("f32", "f64"):
        return kind, naive_program.FLOAT[kind](float(number))
    return kind, bool(int(number)) if kind == "bool" else int(number)


@pytest.mark.parametrize(("op", "args", "want"), ROWS, ids=lambda x: x.replace(" ", "_"))
def test_the_edges_of_the_page(op, args, want):
    given = [parsed(arg) for arg in args.split(", ")]
    kind, wanted = parsed(want)
    root = apply(op, *(value(f"a{i}", arg) for i, (arg, _) in enumerate(given)))
    assert root.type == kind
    leaves = {("input", f"a{i}"): tensor_of([number], arg) for i, (arg, number) in enumerate(given)}
    (got,) = numbers_of(Evaluation(Values(leaves)).own(root), kind)
    assert naive_program.bit_pattern(got, kind) == naive_program.bit_pattern(wanted, kind)
    if op not in FUNCTIONS:
        told = text.text_of([root])
        element = naive_program.Element(told.lets, {("input", f"a{i}"): number for i, (_, number) in enumerate(given)})
        assert naive_program.bit_pattern(element.exact(told.values[0]), kind) == naive_program.bit_pattern(wanted, kind)


def test_the_page_has_the_edges():
    assert len(ROWS) > 55
    assert math.isnan(parsed("f32 nan")[1])
    assert np.signbit(parsed("f32 -0")[1])
