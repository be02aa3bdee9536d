"""The tests of tests/emulator/test_bounds.py on a GPU, and the report of validation level "indices" about exceeded bounds."""

import pytest

from opfacade import Plan, Preference
from opfacade import plan as plans
from opfacade.errors import IndexDataError
from opfacade.testing import inputs
from opfacade.testing.inputs import DrawnLengths
from opfacade.testing.subject import Subject
from tests.emulator.test_bounds import BEYOND, LONG, MANY, SHARED, WAYS, decode, hold_and_compare, latent, prefill
from tests.support.assert_guarantee import hold

pytestmark = pytest.mark.gpu
SHARED_CASES = [
    *(pytest.param(*case.values, id=case.id) for case in SHARED),
    pytest.param(latent(*MANY, kv_split=32), MANY[1], id="latent-many-32"),
]


def lengths_of(make, kv):
    return DrawnLengths(q=[3] * len(kv) if make is prefill else None, kv=kv)


@pytest.mark.parametrize(("descriptor", "kv"), SHARED_CASES)
def test_requests_that_share_pages_have_the_right_results_and_bits(descriptor, kv):
    q = None if "decode" in descriptor.op else [3] * len(kv)
    hold_and_compare(Subject(descriptor, "cuda", "cuda"), DrawnLengths(q=q, kv=kv))


@pytest.mark.parametrize("split", WAYS)
@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("make", [decode, latent, prefill], ids=lambda make: make.__name__)
def test_a_call_that_exceeds_the_bounds_gives_the_right_result(make, beyond, split):
    fields = dict(BEYOND[beyond])
    subject = Subject(make(fields.pop("pages", 60), LONG, kv_split=split, **fields), "cuda", "cuda")
    hold(subject, 5, lengths_of(make, LONG))


@pytest.mark.parametrize("bounds", [{"max_kv_len": 299}, {"max_kv_indices": 46}], ids=str)
@pytest.mark.parametrize("page_table", ["csr", "block"])
@pytest.mark.parametrize("make", [decode, latent, prefill], ids=lambda make: make.__name__)
def test_validation_level_indices_reports_a_call_that_exceeds_the_bounds(monkeypatch, make, page_table, bounds):
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    monkeypatch.setattr(plans, "_selected", {})
    descriptor = make(60, LONG, kv_split=32, page_table=page_table, **bounds)
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    plan.run(inputs.make_args(descriptor, 5, "cuda", lengths_of(make, LONG)))
    import torch

    torch.cuda.synchronize()
    with pytest.raises(IndexDataError) as caught:
        plan.check()
    assert caught.value.code == "OPF-V001"
    assert caught.value.request == (0 if "max_kv_len" in bounds else 3)
