"""The table of edges in docs/ops/recipes.md: recipes and torch give what it says."""

import ast
import re

import pytest
import torch

from opfacade import Preference, recipes
from opfacade.core.dtypes import torch_dtype
from opfacade.plans.elementwise import MapPlan
from opfacade.testing.families.elementwise import differs
from tests.recipes import opinfo
from tests.recipes.page import PAGE

ROWS = re.findall(r"^\| `(\w+)\((.*)\)` \| (.*) \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)
ELSEWHERE = {"one_hot": torch.nn.functional.one_hot, "to": torch.Tensor.to}
TENSOR = re.compile(r"([a-z]\w*) (\S+)")


def parsed(told):
    found = TENSOR.fullmatch(told)
    if found is None:
        return ast.literal_eval(told)
    dtype = torch_dtype(found[1])
    return torch.tensor(float(found[2]) if dtype.is_floating_point else int(found[2])).to(dtype)


def same(got, want):
    return got.dtype == want.dtype and bool(~differs(got.reshape(-1)[:1], want.reshape(1)).any())


@pytest.mark.parametrize(("name", "args", "theirs", "ours"), ROWS, ids=lambda x: x.strip("`").replace(" ", "_"))
def test_the_edges_of_the_page(name, args, theirs, ours):
    given = [parsed(arg) for arg in args.split(", ")]
    made = getattr(recipes, name)(*given)
    call = opinfo.bundle(made, opinfo.Call(tuple(given), {}).tensors(getattr(recipes, name)))
    MapPlan.select(made, Preference(backend="reference")).run(call)
    assert same(made.written(call)[0], parsed(ours))
    if theirs.startswith("`"):
        words = [torch_dtype(arg) if isinstance(arg, str) else arg for arg in given]
        assert same(ELSEWHERE.get(name, getattr(torch, name, None))(*words), parsed(theirs.strip("`")))


def test_the_page_has_the_edges():
    assert len(ROWS) > 30
    assert not same(parsed("f32 -0"), parsed("f32 0"))
