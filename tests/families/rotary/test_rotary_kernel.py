"""The rotary kernel has the bits of the reference in every form, with any strides and in any batch."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.plans.rotary import EXAMPLES, RotaryArgs
from opfacade.testing import inputs, numerics
from opfacade.testing.bits import same_bits
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.rotary.forms import FORMS, problem, spread

HEAVY = pytest.mark.heavy
SM_90A = Target.parse("sm_90a")
CPU = Target.cpu()


def drawn(descriptor, seed, device="cpu"):
    """A call with values of many magnitudes, some skipped rows, and a position past the table."""
    args = inputs.make_args(descriptor, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    args.positions[..., 0] = 2**31 - 1
    args = replace(args, q=spread(args.q, draw), k=spread(args.k, draw))
    return replace(args, **{n: getattr(args, n).to(device) for n in RotaryArgs.__slots__ if getattr(args, n) is not None})


def copied(args):
    return replace(args, **{n: getattr(args, n).clone() for n in RotaryArgs.__slots__ if getattr(args, n) is not None})


def compared(descriptor, args, other):
    for name, out in descriptor.written(args).items():
        assert not bool(differs(out, descriptor.written(other)[name]).any()), name


@emulator.needed
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_it_has_the_bits_of_the_reference(form, in_place, dtype):
    descriptor = problem(9, in_place=in_place, **FORMS[form] | {"dtype": dtype})
    args = drawn(descriptor, 3)
    wanted = copied(args)
    emulator.subject(descriptor).run(args)
    Plan.select(descriptor, target=CPU).run(wanted)
    compared(descriptor, args, wanted)


def of_buffer(positions, room=5):
    """The positions as the first columns of a wider buffer, whose other columns are -1."""
    wide = torch.full((positions.shape[0], positions.shape[1] + room), -1, dtype=positions.dtype)
    return wide[:, : positions.shape[1]].copy_(positions)


@pytest.mark.parametrize("run", [pytest.param("emulator", marks=emulator.needed), "reference"])
@pytest.mark.parametrize("form", ["sections", "sections_neighbours"])
def test_positions_of_sections_may_be_a_view_of_a_larger_buffer(form, run):
    descriptor = problem(9, **FORMS[form])
    plan = emulator.subject(descriptor) if run == "emulator" else Plan.select(descriptor, target=CPU)
    args = drawn(descriptor, 5)
    moved = replace(copied(args), positions=of_buffer(args.positions))
    plan.run(args)
    plan.run(moved)
    compared(descriptor, moved, args)


def parts_of_rows(args, shift):
    """q and k as views of one tensor of wider rows, whose heads may begin at any element."""
    rows, q, k, dim = args.q.shape[0], args.q.shape[1], args.k.shape[1], args.q.shape[2]
    wide = torch.zeros(rows, (q + k) * dim + 8 + shift, dtype=args.q.dtype)
    views = (
        wide[:, shift : shift + q * dim].view(rows, q, dim),
        wide[:, shift + q * dim : shift + (q + k) * dim].view(rows, k, dim),
    )
    return wide, replace(args, q=views[0].copy_(args.q), k=views[1].copy_(args.k))


@emulator.needed
@pytest.mark.parametrize("form", ["half", "neighbours", "partial", "offset", "sections"])
def test_strides_and_batches_do_not_matter(form):
    descriptor = problem(300, **FORMS[form])  # enough rows for several heads per warp
    subject, args = emulator.subject(descriptor), drawn(descriptor, 4)
    wanted = copied(args)
    subject.run(wanted)
    for shift in (0, 8, 1):
        wide, moved = parts_of_rows(args, shift)
        subject.run(moved)
        compared(descriptor, moved, wanted)
        assert not bool(wide[:, :shift].any())
        assert not bool(wide[:, -8:].any())
    alone = emulator.subject(problem(1, **FORMS[form]))
    for row in (0, 17, 299):
        one = replace(
            args,
            q=args.q[row : row + 1].clone(),
            k=args.k[row : row + 1].clone(),
            positions=args.positions[..., row : row + 1].contiguous(),
        )
        alone.run(one)
        assert same_bits(one.q[0], wanted.q[row])
        assert same_bits(one.k[0], wanted.k[row])


@emulator.needed
def test_heads_with_gaps_and_transposed_axes_give_the_same_bits():
    descriptor = problem(6, num_qo_heads=4, num_kv_heads=1)
    args = drawn(descriptor, 5)
    wanted = copied(args)
    subject = emulator.subject(descriptor)
    subject.run(wanted)
    turned = replace(args, q=args.q.transpose(0, 1).contiguous().transpose(0, 1))
    subject.run(turned)
    compared(descriptor, turned, wanted)


@emulator.needed
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("count", [0, 4, 9, -1, 10])
def test_rows_past_num_valid_are_not_written(in_place, count):
    descriptor = problem(9, num_valid=True, in_place=in_place)
    args = inputs.make_args(descriptor, seed=6)
    args.positions.fill_(7)
    for tensor in descriptor.written(args).values():
        tensor.fill_(3.0)
    args.num_valid.fill_(count)
    emulator.subject(descriptor).run(args)
    rows = count if 0 <= count <= 9 else 0
    for tensor in descriptor.written(args).values():
        assert [bool((row != 3).any()) for row in tensor] == [i < rows for i in range(9)]


@emulator.needed
@pytest.mark.parametrize("sections", [None, (8, 12, 12)])
def test_no_position_reads_outside_the_table(sections):
    """The table has one row; the memory around it is NaN, and the emulator checks reads."""
    descriptor = problem(5, sections=sections, dtype="f32")
    args = drawn(descriptor, 7)
    wide = torch.full((3, 64), float("nan"))
    wide[1] = args.cos_sin_cache[5]
    args.positions.copy_(torch.tensor([0, 1, 2**40, -1, -(2**40)]))
    args = replace(args, q=torch.ones_like(args.q), k=torch.ones_like(args.k), cos_sin_cache=wide[1:2])
    emulator.subject(descriptor).run(args)
    assert not bool(args.q.isnan().any())
    assert torch.equal(args.q[0], args.q[1])
    assert torch.equal(args.q[0], args.q[2])
    assert bool((args.q[3:] == 1).all())
    empty = replace(args, q=torch.ones_like(args.q), cos_sin_cache=wide[1:1])
    emulator.subject(descriptor).run(empty)
    assert bool((empty.q == 1).all())


@emulator.needed
def test_row_strides_of_more_than_2_31_elements():
    """Offsets have 64 bits; the rows are in a sparse memory mapping."""
    descriptor = problem(3, num_qo_heads=1, num_kv_heads=0, dtype="bf16")
    storage = torch.UntypedStorage(2**33 + 96)
    far = torch.empty(0, dtype=torch.bfloat16).set_(storage, 0, (3, 1, 64), (2**31 - 8, 64, 1))
    args = drawn(descriptor, 8)
    wanted = copied(args)
    far.copy_(args.q)
    emulator.subject(descriptor).run(replace(args, q=far))
    Plan.select(descriptor, target=CPU).run(wanted)
    assert not bool(differs(far.contiguous(), wanted.q).any())


def test_the_sku_contains_no_size():
    plans = [
        Plan.select(problem(rows, num_qo_heads=heads), Preference(backend="cuda"), SM_90A) for rows, heads in ((3, 1), (9, 32))
    ]
    assert plans[0].sku.id == plans[1].sku.id
    assert plans[0].jit_spec == plans[1].jit_spec
    promise = plans[0].sku.precision_guarantee
    assert (promise.error_model.id, promise.batch_invariant) == ("exact", "composition")
    kinds = {Plan.select(problem(3, **form), Preference(backend="cuda"), SM_90A).sku.id for form in FORMS.values()}
    assert len(kinds) == len(FORMS) - 1  # only the form "many" differs just in sizes


@pytest.mark.parametrize("form", [one if at % 4 == 0 else pytest.param(one, marks=HEAVY) for at, one in enumerate(FORMS)])
def test_each_form_compiles_without_spills(form):
    """compile() raises if ptxas reports spills; the tests on a GPU compile every form."""
    plan = Plan.select(problem(3, **FORMS[form]), Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_has_the_bits_of_the_reference_on_a_gpu(form, in_place, dtype):
    for rows in (1, 500):
        descriptor = problem(rows, in_place=in_place, **FORMS[form] | {"dtype": dtype})
        args = drawn(descriptor, 3, "cuda")
        wanted = copied(args)
        Plan.select(descriptor, Preference(backend="cuda")).run(args)
        Plan.select(descriptor, Preference(backend="reference")).run(wanted)
        compared(descriptor, args, wanted)


@pytest.mark.gpu
def test_a_position_past_the_table_is_reported_by_the_device(monkeypatch):
    from opfacade.errors import IndexDataError

    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    descriptor = problem(5)
    args = drawn(descriptor, 9, "cuda")
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    before = args.q.clone()
    plan.run(args)
    torch.cuda.synchronize()
    assert same_bits(args.q[0], before[0])  # the kernel received position -1 instead
    with pytest.raises(
        IndexDataError, match=r"positions\[0\] expected a value at least -1 and below the size of axis 0 of cos_sin_cache"
    ):
        plan.run(args)


def test_each_example_has_a_kernel_with_the_bits_of_the_reference():
    for example in EXAMPLES:
        subject = emulator.subject(example)
        args = inputs.make_args(example, seed=1)
        before = numerics.snapshot(example, args)
        subject.run(args)
        exact = subject.plan.precision_guarantee.error_model.id == "exact"
        assert numerics.check(example, args, subject.plan.sku, before=before).worst <= (0 if exact else 1)
