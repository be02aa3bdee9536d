"""Inputs of stride 0 and slices of wider block tables, in every op: accepted, correct, and never written."""

from dataclasses import replace

import pytest
import torch

from opfacade import plan as plans
from opfacade.core.descriptor import operands_of
from opfacade.errors import LayoutError
from opfacade.observe import crosscheck
from opfacade.testing import matrix, numerics
from opfacade.testing.families.attention.requests import bits
from opfacade.testing.subject import Subject
from tests.support.accepted import accepted
from tests.support.operand_forms import axes_of_heads, expanded, sliced
from tests.support.problems import append, cache, decode, mla, on_reference, prefill, ragged
from tests.support.sound_calls import assert_refused

ROPE = {"rope": "half", "paged_kv": cache(dtype="bf16")}
PROBLEMS = {
    "prefill": lambda table: prefill([3, 2], [6, 9], page_table=table),
    "decode": lambda table: decode([6, 9], page_table=table),
    "ragged": lambda table: ragged([3, 2], [6, 9]),
    "append": lambda table: append([3, 2], [6, 9], page_table=table),
    "append-rope": lambda table: append([3, 2], [6, 9], page_table=table, **ROPE),
    "mla": lambda table: mla([6, 9], page_table=table),
}
READS = {
    "prefill": {"q", "k_data", "v_data"},
    "decode": {"q", "k_data", "v_data"},
    "ragged": {"q", "k", "v"},
    "append": {"k_new", "v_new"},
    "append-rope": {"k_new", "v_new"},
    "mla": {"q_nope", "q_pe"},
}
TABLED = [name for name in PROBLEMS if name != "ragged"]


def held(descriptor, args, plan):
    """The args after a run, with outputs within their bound."""
    before = numerics.snapshot(descriptor, args)
    plan.run(args)
    report = numerics.check(descriptor, args, plan.sku, before=before)
    assert report.worst <= 1, report


@pytest.mark.parametrize("name", PROBLEMS)
def test_inputs_of_one_head_are_read(name):
    descriptor, args = PROBLEMS[name]("csr")
    call, names = expanded(descriptor, args)
    assert set(names) == READS[name]
    plan = on_reference(descriptor)
    assert plan.can_implement(call)
    held(descriptor, call, plan)
    held(descriptor, replace(call), plan)  # a new bundle of a known kind


@pytest.mark.parametrize("name", TABLED)
def test_a_block_table_may_be_a_slice(name):
    descriptor, args = PROBLEMS[name]("block")
    plan, call = on_reference(descriptor), sliced(args)
    assert call.block_table.stride(0) > call.block_table.shape[1]
    assert plan.can_implement(call)
    held(descriptor, call, plan)
    column = replace(args, block_table=args.block_table.t().contiguous().t())
    assert_refused(plan, column, LayoutError, "OPF-A021", "block_table", "stride 1 in the last dimension")


def test_requests_may_share_a_row_of_a_block_table():
    descriptor, args = decode([6, 6], page_table="block")
    shared = replace(args, block_table=args.block_table[:1].expand(2, -1))
    held(descriptor, shared, on_reference(descriptor))


def test_a_cross_check_copies_inputs_of_one_head(monkeypatch):
    monkeypatch.setattr(plans, "_selected", {})
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    descriptor, args = ragged([3, 2], [6, 9])
    call, names = expanded(descriptor, args)
    on_reference(descriptor).run(call)
    copy = crosscheck.copied(call)
    for name in names:
        own, other = getattr(copy, name), getattr(call, name)
        assert torch.equal(bits(own), bits(other))
        assert own.stride() == other.stride()
        assert own.data_ptr() != other.data_ptr()
    none = ragged([0], [0])
    assert crosscheck.copied(expanded(*none)[0]).k.shape == none[1].k.shape


def has_a_form(descriptor):
    return bool(axes_of_heads(descriptor)) or "block_table" in operands_of(descriptor)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [kind for kind, descriptor in matrix.matrix().items() if has_a_form(descriptor)])
def test_kernels_read_inputs_of_one_head_and_slices_of_tables(kind):
    """Products of fp8 load by TMA only, which does not support stride 0: a typed error, and nothing is written."""
    subject = accepted(Subject(matrix.matrix()[kind], "cuda", "cuda"))
    args, _ = expanded(subject.descriptor, subject.args(3))
    args = sliced(args) if getattr(args, "block_table", None) is not None else args
    if subject.plan.sku.impl == "wgmma_fp8_tile":
        assert {issue.code for issue in subject.plan.can_implement(args).issues} == {"OPF-A026"}
        with pytest.raises(LayoutError, match="OPF-A026"):
            subject.run(args)
        return
    assert subject.plan.can_implement(args)
    for _ in range(3):
        held(subject.descriptor, args, subject.plan)
