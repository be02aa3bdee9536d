"""Norm, rotation and append of q, k and v: against the separate ops, in every form of table, and unwritten memory."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target, load_descriptor
from opfacade.errors import ArgumentError, DescriptorError, IndexDataError
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor
from opfacade.plans.rotary import (
    EXAMPLES,
    PagedKvCacheDescriptor,
    QkvPrepareArgs,
    QkvPrepareDescriptor,
    RotaryArgs,
    RotaryDescriptor,
)
from opfacade.testing import inputs, numerics
from opfacade.testing.bits import same_bits
from opfacade.testing.inputs import DrawnLengths
from opfacade.testing.subject import Subject
from tests import emulator
from tests.families.rotary.test_rotary_kernel import of_buffer

CPU, SM_90A = Target.cpu(), Target.parse("sm_90a")
HEAVY = pytest.mark.heavy
FORMS = {
    "slots": {},
    "csr": {"page_table": "csr", "batch_size": 3},
    "block": {"page_table": "block", "batch_size": 3, "layout": "NHD"},
    "no_norm": {"norm": "none"},
    "one_plus": {"norm": "rms_one_plus", "weight_dtype": "f32"},
    "fp8": {"kv": "f8_e4m3", "kv_scale": "tensor"},
    "fp8_heads": {"kv": "f8_e5m2", "kv_scale": "head", "page_table": "csr", "batch_size": 2},
    "fp8_cast": {"kv": "f8_e4m3"},
    "neighbours": {"interleaved": True, "in_place": True},
    "partial": {"head_dim": 96, "rotary_dim": 32, "rotary_offset": 64},
    "odd": {"head_dim": 33, "rotary_dim": 10, "rotary_offset": 3, "page_size": 3},
    "wide": {"head_dim": 256, "rotary_dim": 256},
    "sections": {"sections": (8, 12, 12), "positions": "i32"},
    "f32": {"dtype": "f32", "kv": "f32"},
    "counted": {"num_valid": True},
    "counted_in_place": {"num_valid": True, "in_place": True, "page_table": "csr", "batch_size": 3, "positions": "i32"},
}


def problem(rows, head_dim=64, page_size=4, layout="HND", kv=None, **fields):
    dtype = fields.setdefault("dtype", "bf16")
    cache = PagedKvCacheDescriptor(
        num_total_pages=24, page_size=page_size, num_kv_heads=2, head_dim=head_dim, dtype=kv or dtype, layout=layout
    )
    sizes = {"num_qo_heads": 5, "rotary_dim": min(head_dim, 64)}
    return QkvPrepareDescriptor(total_num_rows=rows, paged_kv=cache, **sizes | fields)


def held(subject, args):
    before = numerics.snapshot(subject.descriptor, args)
    subject.run(args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report


def copied(args):
    return replace(args, **{n: getattr(args, n).clone() for n in QkvPrepareArgs.__slots__ if getattr(args, n) is not None})


def results(descriptor, args):
    return (args.q if descriptor.in_place else args.q_out), args.k_data, args.v_data


class OnCpu:
    def __init__(self, descriptor):
        self.descriptor, self.plan = descriptor, Plan.select(descriptor, target=CPU)

    def run(self, args):
        self.plan.run(args)


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_keeps_its_bound(form):
    descriptor = problem(11, **FORMS[form])
    for seed in range(2):
        held(OnCpu(descriptor), inputs.make_args(descriptor, seed=seed))


@emulator.needed
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_keeps_its_bound(form):
    descriptor = problem(11, **FORMS[form])
    held(emulator.subject(descriptor), inputs.make_args(descriptor, seed=3))
    held(emulator.subject(descriptor), inputs.make_args(descriptor, seed=4, interleaved=True))


@pytest.mark.parametrize("run", [pytest.param("emulator", marks=emulator.needed), "reference"])
def test_positions_of_sections_may_be_a_view_of_a_larger_buffer(run):
    """All sections may also share one row of positions through an expanded tensor."""
    descriptor = problem(11, **FORMS["sections"])
    subject = emulator.subject(descriptor) if run == "emulator" else OnCpu(descriptor)
    args = inputs.make_args(descriptor, seed=3)
    for dense, views in (
        (args.positions, of_buffer(args.positions)),
        (args.positions[:1].repeat(3, 1), args.positions[:1].expand(3, -1)),
    ):
        one, other = (replace(copied(args), positions=positions) for positions in (dense, views))
        subject.run(one)
        subject.run(other)
        for a, b in zip(results(descriptor, one), results(descriptor, other), strict=True):
            assert same_bits(a, b)


def with_new_rows(descriptor, args, k):
    """Appends the same rows by the op paged_kv_append."""
    append = PagedKvAppendDescriptor(
        batch_size=descriptor.batch_size, total_num_rows=descriptor.total_num_rows, paged_kv=descriptor.paged_kv,
        page_table=descriptor.page_table, new_dtype=descriptor.dtype, kv_scale=descriptor.kv_scale,
    )  # fmt: skip
    names = ("append_indptr", "kv_indptr", "kv_indices", "last_page_len", "block_table", "kv_lens", "k_scale", "v_scale")
    more = {name: getattr(args, name) for name in names}
    Plan.select(append, target=CPU).run(
        PagedKvAppendArgs(k_new=k, v_new=args.v, k_data=args.k_data, v_data=args.v_data, **more)
    )


@emulator.needed
@pytest.mark.parametrize("kv", ["bf16", "f8_e4m3"])
@pytest.mark.parametrize("table", ["csr", "block"])
def test_without_a_norm_the_op_equals_rotary_and_append_bitwise(table, kv):
    descriptor = problem(13, norm="none", page_table=table, batch_size=3, kv=kv)
    args = inputs.make_args(descriptor, seed=5)
    args.positions.clamp_(min=0)
    apart = copied(args)
    emulator.subject(descriptor).run(args)
    rotary = RotaryDescriptor(total_num_rows=13, num_qo_heads=5, num_kv_heads=2, head_dim=64, rotary_dim=64, dtype="bf16")
    Plan.select(rotary, target=CPU).run(
        RotaryArgs(q=apart.q, k=apart.k, positions=apart.positions, cos_sin_cache=apart.cos_sin_cache)
    )
    with_new_rows(descriptor, apart, apart.k)
    assert same_bits(args.q_out, apart.q)
    if kv == "bf16":  # otherwise the separate ops round k twice
        assert same_bits(args.k_data, apart.k_data)
    assert same_bits(args.v_data, apart.v_data)


def test_the_norm_equals_torch():
    descriptor = problem(6, dtype="f32", kv="f32", eps=1e-3)
    args = inputs.make_args(descriptor, seed=6)
    args.positions.fill_(0)  # position 0 has angle 0
    OnCpu(descriptor).run(args)
    want = torch.nn.functional.rms_norm(args.q, (64,), args.q_weight, 1e-3)
    torch.testing.assert_close(args.q_out, want)
    row = int((args.slots >= 0).nonzero()[0])
    page, token = divmod(int(args.slots[row]), 4)
    want = torch.nn.functional.rms_norm(args.k[row], (64,), args.k_weight, 1e-3)
    torch.testing.assert_close(args.k_data[page, :, token], want)
    assert torch.equal(args.v_data[page, :, token], args.v[row])


def on_gpu(descriptor):
    return Subject(descriptor, "cuda", "cuda")


PLACES = [
    pytest.param(emulator.subject, marks=emulator.needed, id="emulator"),
    pytest.param(on_gpu, marks=pytest.mark.gpu, id="gpu"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["slots", "fp8", "partial", "odd"])
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(form, place):
    descriptor = problem(40, **FORMS[form])
    subject = place(descriptor)
    args = inputs.make_args(descriptor, 7, subject.device)
    whole = copied(args)
    subject.run(whole)
    alone = place(problem(1, **FORMS[form]))
    for row in (1, 17, 39):
        names = ("q", "k", "v", "q_out", "positions", "slots")
        one = replace(copied(args), **{name: getattr(args, name)[row : row + 1].clone() for name in names})
        alone.run(one)
        assert same_bits(one.q_out[0], whole.q_out[row])
        if int(args.slots[row]) >= 0:
            page, token = divmod(int(args.slots[row]), descriptor.paged_kv.page_size)
            assert same_bits(one.k_data[page, :, token], whole.k_data[page, :, token])


@emulator.needed
def test_many_rows_give_the_bits_of_few_rows():
    """A warp computes several heads; q, k and v are views of one tensor."""
    descriptor = problem(300)
    args = inputs.make_args(descriptor, seed=8)
    args.slots[90:] = -1
    wide = torch.cat([args.q, args.k, args.v], 1)
    views = copied(args)
    views = replace(views, q=wide[:, :5], k=wide[:, 5:7], v=wide[:, 7:])
    emulator.subject(descriptor).run(views)
    few = emulator.subject(problem(90))
    names = ("q", "k", "v", "q_out", "positions", "slots")
    first = replace(copied(args), **{name: getattr(args, name)[:90].clone() for name in names})
    few.run(first)
    assert same_bits(views.q_out[:90], first.q_out)
    assert same_bits(views.k_data, first.k_data)
    assert same_bits(views.v_data, first.v_data)


@pytest.mark.parametrize("on", ["reference", "kernel"])
def test_rows_with_a_negative_position_or_slot_are_skipped(on):
    if on == "kernel" and emulator.compiler() is None:
        pytest.skip("no g++ to build kernels for the host with")
    descriptor = problem(6)
    args = inputs.make_args(descriptor, seed=9)
    args.slots.copy_(torch.tensor([-1, 5, 0, 96, -7, 9]))  # slot 96 is past the 24 pages of 4 tokens
    args.positions.copy_(torch.tensor([1, 1, 1, 1, 1, -1]))
    before = copied(args)
    (OnCpu(descriptor) if on == "reference" else emulator.subject(descriptor)).run(args)
    written = (args.k_data.isnan() != before.k_data.isnan()).any(-1).any(1).nonzero().tolist()
    assert written == [[0, 0], [1, 1]]  # (page, token) of slots 0 and 5
    assert args.q_out.isnan().flatten(1).any(1).tolist() == [False] * 5 + [True]


@pytest.mark.parametrize("on", ["reference", "kernel"])
def test_rows_that_belong_to_no_request_are_skipped(on):
    if on == "kernel" and emulator.compiler() is None:
        pytest.skip("no g++ to build kernels for the host with")
    descriptor = problem(9, page_table="csr", batch_size=2)
    args = inputs.make_args(descriptor, seed=10, lengths=DrawnLengths(q=(3, 2), kv=(7, 2)))
    args.positions.fill_(2)
    (OnCpu(descriptor) if on == "reference" else emulator.subject(descriptor)).run(args)
    assert args.q_out.isnan().flatten(1).any(1).tolist() == [False] * 5 + [True] * 4


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize("count", [5, 0, 9, -1, 10])
@pytest.mark.parametrize("form", ["counted", "counted_in_place"])
def test_rows_past_num_valid_are_skipped(form, count, on):
    """The op writes neither their q nor their tokens; if the count is out of range, no row is valid."""
    if on == "kernel" and emulator.compiler() is None:
        pytest.skip("no g++ to build kernels for the host with")
    descriptor = problem(9, **FORMS[form])
    whole = inputs.make_args(descriptor, seed=12, lengths=DrawnLengths(q=(3, 2, 4), kv=(7, 2, 4), valid=9))
    whole.positions.fill_(2), whole.k_data.fill_(torch.nan), whole.v_data.fill_(torch.nan)
    if whole.slots is not None:
        whole.slots.copy_(torch.arange(9) * 5)
    cut, before = copied(whole), copied(whole)
    cut.num_valid.fill_(count)
    subject = OnCpu(descriptor) if on == "reference" else emulator.subject(descriptor)
    subject.run(whole), subject.run(cut)
    valid = count if 0 <= count <= 9 else 0
    (q, *pools), (all_q, *full), (old_q, *empty) = (results(descriptor, args) for args in (cut, whole, before))
    assert same_bits(q[:valid], all_q[:valid])
    assert same_bits(q[valid:], old_q[valid:])
    for pool, made, old in zip(pools, full, empty, strict=True):
        stored = (pool.isnan() != old.isnan()).any(-1).any(1)
        assert int(stored.sum()) == valid
        assert same_bits(pool.movedim(1, 2)[stored], made.movedim(1, 2)[stored])


def test_values_of_rows_past_num_valid_are_not_validated(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor = problem(6, num_valid=True)
    args = inputs.make_args(descriptor, seed=13, lengths=DrawnLengths(valid=4))
    args.positions[:4] = 0
    assert bool(args.k[4:].isnan().all())
    Plan.select(descriptor, target=CPU).run(args)
    args.num_valid.fill_(5)
    with pytest.raises(ArgumentError, match="q"):
        Plan.select(descriptor, target=CPU).run(args)


@pytest.mark.parametrize("level", ["indices", "full"])
@pytest.mark.parametrize("sections", [None, (8, 12, 12)])
def test_positions_of_rows_past_num_valid_are_not_validated(monkeypatch, level, sections):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    descriptor = problem(6, num_valid=True, sections=sections)
    args = inputs.make_args(descriptor, seed=13, lengths=DrawnLengths(valid=4))
    positions = args.positions.view(descriptor.groups, 6)
    positions[:, :4], positions[:, 4:] = 0, 2**40
    Plan.select(descriptor, target=CPU).run(args)
    positions[:, 4:] = 0
    positions[-1, 3] = 2**40
    with pytest.raises(IndexDataError, match=r"positions\[2, 3\]" if sections else r"positions\[3\]"):
        Plan.select(descriptor, target=CPU).run(args)


def test_validation_checks_slots_and_positions(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    descriptor = problem(4)
    args = inputs.make_args(descriptor, seed=11)
    args.positions.fill_(0)
    args.slots.copy_(torch.tensor([0, 1, -1, 96]))
    with pytest.raises(IndexDataError, match=r"slots\[3\] expected a value in \[-1, 96\), got 96"):
        Plan.select(descriptor, target=CPU).run(args)
    args.slots[3], args.positions[1] = 3, 50
    with pytest.raises(IndexDataError, match=r"positions\[1\] expected a value in \[-1, 50\), got 50"):
        Plan.select(descriptor, target=CPU).run(args)


@pytest.mark.parametrize(
    ("fields", "argument", "word"),
    [
        ({"kv": "f16"}, "paged_kv.dtype", "bf16, the dtype of q"),
        ({"kv_scale": "tensor"}, "kv_scale", "'none' for a cache of bf16"),
        ({"norm": "none", "weight_dtype": "f32"}, "weight_dtype", "None without a norm"),
        ({"eps": -1.0}, "eps", "greater than or equal to 0"),
        ({"rotary_dim": 65}, "rotary_dim", "an even number"),
        ({"sections": (1, 2)}, "sections", "whose sum is 32"),
    ],
)
def test_contradictory_fields_are_refused(fields, argument, word):
    with pytest.raises(DescriptorError, match=word) as caught:
        problem(4, **fields)
    assert caught.value.issues[0].argument == argument


def test_a_serialised_descriptor_is_equal_and_its_sku_contains_no_size():
    for example in EXAMPLES:
        assert load_descriptor(example.canonical_json()) == example
    plans = [Plan.select(problem(rows, eps=eps), Preference(backend="cuda"), SM_90A) for rows, eps in ((3, 1e-6), (900, 1e-5))]
    assert plans[0].sku.id == plans[1].sku.id
    assert plans[0].jit_spec == plans[1].jit_spec


@pytest.mark.parametrize("form", [one if at % 4 == 0 else pytest.param(one, marks=HEAVY) for at, one in enumerate(FORMS)])
def test_each_form_compiles_without_spills(form):
    """compile() raises if ptxas reports spills; the tests on a GPU compile every form."""
    plan = Plan.select(problem(3, **FORMS[form]), Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_each_form_keeps_its_bound_on_a_gpu(form):
    for rows in (1, 60):
        descriptor = problem(rows, **FORMS[form])
        plan = Plan.select(descriptor, Preference(backend="cuda"))
        args = inputs.make_args(descriptor, seed=3, device="cuda")
        before = numerics.snapshot(descriptor, args)
        plan.run(args)
        assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
