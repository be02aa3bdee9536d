"""FlashInfer's appends at the validation levels that read tensors: rows without a request, and the arguments that errors name.

At level indices the host plays the device, as in tests/validation/test_device.py.
"""

import pytest
import torch

from opfacade import Target
from opfacade import plan as plans
from opfacade.compat import flashinfer
from opfacade.errors import IndexDataError
from opfacade.select.registry import candidates_for
from opfacade.validation.device import DeviceGuard
from opfacade.validation.rules import tables_of
from tests import emulator
from tests.validation.test_device import _host, trusting  # noqa: F401
from tests.validation.test_rules import judge_all  # noqa: F401

H100, PAGE, HEADS, DIM = Target.parse("sm_90a"), 4, 2, 16
FIRST = -1.0  # content of the cache before the call


def indices(*values):
    return torch.tensor(values, dtype=torch.int32)


def table(*pages, ends=(0, 2, 3)):
    """Request 0 has two pages and request 1 has one."""
    return {"kv_indices": indices(*pages), "kv_indptr": indices(*ends), "kv_last_page_len": indices(*(1 for _ in ends[1:]))}


class Cache:
    """A cache of 6 pages and appends to it: row i of an append holds i."""

    def __init__(self):
        self.pages = torch.full((6, 2, PAGE, HEADS, DIM), FIRST, dtype=torch.float16)

    def append(self, request, position, count=None, pages=(0, 4, 5)):
        rows = torch.arange(len(request) if count is None else count)[:, None, None].expand(-1, HEADS, DIM).half().contiguous()
        where = {"batch_indices": indices(*request), "positions": indices(*position)}
        flashinfer.append_paged_kv_cache(rows, rows, **where, paged_kv_cache=self.pages, **table(*pages))

    @property
    def rows(self):
        """(page, slot): the row that is stored there."""
        one = self.pages[..., 0, 0]
        assert torch.equal(self.pages, one[..., None, None].expand_as(self.pages))
        assert torch.equal(one[:, 0], one[:, 1])
        places = (one[:, 0] != FIRST).nonzero().tolist()
        return {(page, slot): int(one[page, 0, slot]) for page, slot in places}


class Guarded:
    """The part of a plan that an append needs: a guard around an operator that trusts its tables."""

    def __init__(self, descriptor, operator):
        self.descriptor = descriptor
        sku = next(c for c in candidates_for(type(descriptor)) if c.backend == "cuda").sku(descriptor, H100)
        self.guard = DeviceGuard(tables_of(descriptor), sku, True)
        self.launch = self.guard.wrap(operator(descriptor))

    def run(self, args):
        self.launch(args, None)


OPERATORS = {
    "trusting": lambda descriptor: trusting(descriptor, tables_of(descriptor)),
    "kernel": lambda descriptor: lambda args, workspace: emulator.subject(descriptor).run(args),
}


@pytest.fixture(params=["trusting", pytest.param("kernel", marks=emulator.needed)])
def on_device(request, monkeypatch, judge_all):  # noqa: F811
    """Runs appends as on a device at level indices; yields the plan that was used last."""
    made, used = {}, []
    real = flashinfer.page.appended

    def appended(*given):
        call = real(*given)
        key = call.plan.descriptor
        if key not in made:
            made[key] = Guarded(key, OPERATORS[request.param])
        used[:] = [made[key]]
        return call._replace(plan=made[key])

    monkeypatch.setattr(flashinfer.page, "appended", appended)
    return used


@pytest.fixture
def level(monkeypatch):
    def at(name):
        monkeypatch.setenv("OPFACADE_VALIDATE", name)
        monkeypatch.setattr(plans, "_selected", {})

    return at


def test_a_row_of_nobody_between_others_is_no_error_of_the_next_call(on_device):
    cache = Cache()
    for _ in range(2):
        cache.append((0, -1, 1), (3, 9, 0))
    assert cache.rows == {(0, 3): 0, (5, 0): 2}
    on_device[0].guard.check()


def test_a_row_without_a_page_is_an_error_of_the_next_call(on_device):
    cache = Cache()
    cache.append((0, -1, 1), (3, 9, 4))
    assert cache.rows == {(0, 3): 0}
    told = (
        r"^append_paged_kv_cache\.run: positions\[2\] expected a position in the pages of its request, got one without a page"
    )
    with pytest.raises(IndexDataError, match=told) as caught:
        cache.append((0, -1, 1), (3, 9, 0))
    assert (caught.value.asynchronous, caught.value.call_id, caught.value.request) == (True, 0, -1)


def test_one_request_more_than_new_rows_is_told_by_its_argument_later(on_device):
    cache = Cache()
    cache.append((0, 1, 0), (3, 0, 4), count=2)
    assert cache.rows == {(0, 3): 0, (5, 0): 1}
    told = r"^append_paged_kv_cache\.run: batch_indices expected -1 past the 2 new rows, got a request \(found on the device"
    with pytest.raises(IndexDataError, match=told) as caught:
        cache.append((0, 1, -1), (3, 0, 4), count=2)
    assert caught.value.argument == "batch_indices"


@pytest.mark.parametrize("name", ["metadata", "full"])
def test_one_request_more_than_new_rows_is_told_by_its_argument(level, name):
    level(name)
    cache = Cache()
    cache.append((0, 1, -1, -1), (3, 0, 0, 0), count=2)
    for request, place in (((0, 1, 1), 2), ((0, -1, -1, 1), 3)):
        told = rf"^append_paged_kv_cache\.run: batch_indices\[{place}\] expected -1 past the 2 new rows, got 1\. \[OPF-V001\]"
        with pytest.raises(IndexDataError, match=told):
            cache.append(request, (3, 0, 1, 2)[: len(request)], count=2)


@pytest.mark.parametrize("name", ["metadata", "indices", "full"])
def test_rows_of_nobody_are_no_error_at_any_level(level, name):
    level(name)
    cache = Cache()
    cache.append((0, -1, 1, -1, 0, -1), (3, 9, 0, 0, 7, 0))
    assert cache.rows == {(0, 3): 0, (5, 0): 2, (4, 3): 4}


def test_full_takes_rows_of_one_page(level):
    level("full")
    cache = Cache()
    cache.append((0, 0, 1, 0, -1, 1), (3, 1, 0, 6, 0, 3))
    assert cache.rows == {(0, 3): 0, (0, 1): 1, (5, 0): 2, (4, 2): 3, (5, 3): 5}


SHARED = {
    "both append": ((0, 1), (1, 0), (5, 4, 5), 2, "a page of its own: request 0 also appends to it"),
    "another has it": ((0,), (1,), (5, 4, 5), 2, "a page of its own: request 0 shares it"),
    "a later one appends": ((1,), (1,), (0, 4, 4), 2, "a page of its own: request 0 shares it"),
    "twice": ((0,), (5,), (4, 4, 5), 1, "a page of its own: request 0 has it twice"),
}


@pytest.mark.parametrize("case", SHARED)
def test_full_refuses_a_page_of_two_owners(level, case):
    level("full")
    request, position, pages, place, allowed = SHARED[case]
    cache = Cache()
    told = (
        rf"^append_paged_kv_cache\.run: kv_indices\[{place}\] expected {allowed}, got {pages[place]} for request .\. \[OPF-V002"
    )
    with pytest.raises(IndexDataError, match=told):
        cache.append(request, position, pages=pages)
    assert cache.rows == {}


def test_full_refuses_two_rows_at_one_position(level):
    level("full")
    cache = Cache()
    told = r"positions\[2\] expected a position of its own: row 0 also goes there, got 3 for request 0\. \[OPF-V002\]"
    with pytest.raises(IndexDataError, match=told) as caught:
        cache.append((0, 1, 0), (3, 3, 3))
    assert (caught.value.argument, caught.value.asynchronous) == ("positions", False)
    assert cache.rows == {}


def test_a_latent_row_has_the_same_owners(level):
    level("full")
    latent, new = torch.zeros(6, PAGE, 8), torch.ones(2, 8)
    call = flashinfer.append_paged_mla_kv_cache
    call(new, new, indices(0, 0), indices(1, 2), ckv_cache=latent, kpe_cache=None, **table(0, 4, 5))
    assert latent[0].any(1).tolist() == [False, True, True, False]
    with pytest.raises(IndexDataError, match=r"append_paged_mla_kv_cache\.run: kv_indices\[2\].*OPF-V002"):
        call(new, new, indices(0, 0), indices(1, 2), ckv_cache=latent, kpe_cache=None, **table(0, 4, 0))


def test_pages_that_are_read_alone_may_be_shared(level):
    level("full")
    cache = Cache()
    cache.append((0,), (5,), pages=(3, 4, 3))
    assert cache.rows == {(4, 1): 0}
