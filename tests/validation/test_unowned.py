"""Rows that no request owns and pages that no row sees: see tests/support/unowned_rows.py."""

import pytest

from opfacade import Plan, Preference, Target
from opfacade import plan as plans
from opfacade.errors import IndexDataError
from opfacade.testing import numerics
from tests.support import unowned_rows as unowned


def run(descriptor, args):
    Plan.select(descriptor, Preference(backend="reference"), Target.cpu()).run(args)


def run_on_gpu(descriptor, args):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    plan.run(args)
    import torch

    torch.cuda.synchronize()
    plan.check()


@pytest.fixture(params=["metadata", "indices", "full"])
def level(request, monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", request.param)
    monkeypatch.setattr(plans, "_selected", {})


@pytest.mark.parametrize("kind", unowned.PADDED)
def test_rows_that_no_request_owns_are_neither_read_nor_written(level, kind):
    unowned.check_padded(kind, run)


@pytest.mark.parametrize("kind", unowned.WINDOWED)
def test_pages_that_no_row_sees_may_have_any_id(level, kind):
    unowned.check_hidden(kind, run)


@pytest.mark.parametrize("kind", unowned.WINDOWED)
def test_the_first_page_that_is_used_is_still_checked(level, kind):
    descriptor = unowned.WINDOWED[kind]
    _, args = unowned.hidden(kind, ids=(-1,))
    first = unowned.first_used(descriptor, 2) // descriptor.paged_kv.page_size
    unowned.pages_of(args, 2)[first] = -1
    with pytest.raises(IndexDataError) as caught:
        run(descriptor, args)
    assert (caught.value.request, caught.value.value) == (2, -1)


@pytest.mark.parametrize("kind", unowned.WINDOWED)
def test_the_oracle_looks_at_no_hidden_page(kind):
    sound, args = unowned.hidden(kind)
    descriptor, before = unowned.WINDOWED[kind], None
    if "append" in kind:
        before = (sound.k_data.clone(), sound.v_data.clone())
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", unowned.PADDED)
def test_rows_that_no_request_owns_on_a_gpu(level, kind):
    unowned.check_padded(kind, run_on_gpu, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", unowned.WINDOWED)
def test_hidden_pages_on_a_gpu(level, kind):
    unowned.check_hidden(kind, run_on_gpu, "cuda")
