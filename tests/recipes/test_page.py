"""The tables of docs/ops/recipes.md agree with the code, and name every operator of torch's tests once."""

import pytest
import torch

from opfacade import recipes
from opfacade.recipes.waiting import WAITING, reason_of
from tests.recipes import opinfo, page


def test_the_page_is_current():
    assert page.PAGE.read_text() == page.written(), "run scripts/recipes"


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the lists are of torch 2.13's operators")
def test_every_operator_has_a_recipe_or_a_reason_and_not_both():
    names = {name for name, _ in opinfo.infos()}
    reached = {name for recipe in recipes.RECIPES.values() for name in recipe.names}
    waiting = [name for group in WAITING.values() for name in group]
    assert len(set(waiting)) == len(waiting)
    assert names - reached - set(waiting) == set()
    assert set(waiting) - names == set()
    assert reached & set(waiting) == set()
    assert len(reached & names) > 340


def test_a_reason_is_found_by_either_name():
    assert reason_of("linalg.svd") == reason_of("svd") != reason_of("cumsum")
    assert reason_of("silu") is None
