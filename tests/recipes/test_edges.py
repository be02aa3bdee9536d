"""The table of edges in docs/ops/recipes.md agrees with recipes and torch."""

import ast
import re

import pytest
import torch

from opfacade import Preference, recipes
from opfacade.core.dtypes import torch_dtype
from opfacade.plan import Plan
from opfacade.testing.families.elementwise import differs
from tests.recipes import opinfo
from tests.recipes.page import PAGE

ROWS = re.findall(r"^\| `(\w+)\((.*)\)` \| (.*) \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)
ELSEWHERE = {"to": torch.Tensor.to, "linalg_vector_norm": torch.linalg.vector_norm}
TENSOR = re.compile(r"([a-z]\w*) (\[.*\]|\S+)")  # such as f32 2.5, and f32 [1 nan] of one axis


def parsed(told):
    found = TENSOR.fullmatch(told)
    if found is None:
        return ast.literal_eval(told)
    dtype = torch_dtype(found[1])
    number = float if dtype.is_floating_point else int
    several = [number(one) for one in found[2].strip("[]").split()]
    return torch.tensor(several if found[2].startswith("[") else several[0]).to(dtype)


def same(got, want):
    """One number may stand for the first of several."""
    got = got if want.ndim else got.reshape(-1)[:1]
    return got.dtype == want.dtype and bool(~differs(got, want.reshape(got.shape)).any())


def of_torch(name):
    elsewhere = getattr(torch.nn.functional, name, None) or getattr(torch, name, None)
    return ELSEWHERE.get(name, elsewhere)


@pytest.mark.parametrize(("name", "args", "theirs", "ours"), ROWS, ids=lambda x: x.strip("`").replace(" ", "_"))
def test_the_edges_of_the_page(name, args, theirs, ours):
    given = [parsed(arg) for arg in args.split(", ")]
    made = getattr(recipes, name)(*given)
    call = opinfo.bundle(made, opinfo.Call(tuple(given), {}).tensors(getattr(recipes, name)))
    Plan.select(made, Preference(backend="reference")).run(call)
    assert same(made.written(call)[0], parsed(ours))
    if theirs.startswith("`"):
        words = [torch_dtype(arg) if isinstance(arg, str) else arg for arg in given]
        assert same(of_torch(name)(*words), parsed(theirs.strip("`")))


def test_the_page_has_the_edges():
    assert len(ROWS) > 70
    assert not same(parsed("f32 -0"), parsed("f32 0"))
    assert not same(parsed("f32 [1 2]"), parsed("f32 [1 3]"))
