"""The request tables of a descriptor agree with its operands."""

import pytest

from opfacade.core.descriptor import operands_of
from opfacade.select.registry import examples
from opfacade.testing.families.attention.requests import changed

EXAMPLES = examples()
WITH_TABLES = [e for e in EXAMPLES if e.request_tables() is not None]
OPS = {"paged_prefill", "ragged_prefill", "paged_decode", "mla_decode", "paged_kv_append", "qkv_prepare"}


def test_ops_over_requests_have_tables():
    assert {e.op for e in WITH_TABLES} == OPS


def ids(descriptor):
    return f"{descriptor.op}-{EXAMPLES.index(descriptor)}"


@pytest.mark.parametrize("descriptor", WITH_TABLES, ids=ids)
def test_tables_and_index_operands_are_the_same(descriptor):
    tables, operands = descriptor.request_tables(), operands_of(descriptor)
    named = {name for name in tables.names if name}
    assert named == {name for name, spec in operands.items() if spec.role == "index"} - {"mask_indptr", "positions"}
    assert tables.block == (bool(tables.pages) and len(operands[tables.pages].shape) == 2)
    assert tables.op == descriptor.op
    assert (tables.requests, tables.max_len) == (descriptor.batch_size, descriptor.request_token_bound)
    rows = {"paged_decode": 0, "mla_decode": 0}
    assert tables.total_rows == rows.get(descriptor.op, getattr(descriptor, "total_num_rows", 0))
    assert tables.appends == (descriptor.op in ("paged_kv_append", "qkv_prepare"))


@pytest.mark.parametrize("descriptor", WITH_TABLES, ids=ids)
def test_page_and_token_axes_have_the_sizes_of_the_pool(descriptor):
    tables = descriptor.request_tables()
    paged = [spec for spec in operands_of(descriptor).values() if spec.paged is not None]
    assert bool(paged) == bool(tables.pages)
    for spec in paged:
        assert [spec.shape[axis].size for axis in spec.paged] == [tables.num_pages, tables.page_tokens]


def test_key_parameters_are_paged_if_the_keys_are():
    """The examples whose mask compares documents have one parameter per key."""
    found = {e.op: operands_of(e)["key_params"].paged for e in EXAMPLES if "key_params" in operands_of(e)}
    assert found == {"paged_prefill": (1, 2), "ragged_prefill": None}


@pytest.mark.parametrize("descriptor", [e for e in WITH_TABLES if e.request_tables().pages], ids=ids)
def test_a_smaller_pool_reduces_the_bound_on_pages(descriptor):
    before = descriptor.request_tables()
    small = descriptor.on_pages(3)
    assert small.request_tables().num_pages == 3
    assert small.max_kv_indices == (before.limit if before.bounded else before.num_pages)
    assert changed(small, paged_kv=descriptor.paged_kv, max_kv_indices=descriptor.max_kv_indices) == descriptor


def test_an_op_without_requests_has_no_tables_and_ignores_the_pool():
    (merge, *_) = (e for e in EXAMPLES if e.op == "merge_states")
    assert merge.request_tables() is None
    assert merge.on_pages(3) is merge
