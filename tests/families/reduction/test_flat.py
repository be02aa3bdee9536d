"""Unaligned rows are copied through shared memory. They get the same bits as on other paths, and no other byte changes."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.folds.strategies import flat as numbers
from opfacade.core.descriptor import operands_of
from opfacade.testing import numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.reduction.forms import masked, quantised, reducer, rms, softmax
from tests.families.reduction.test_fold_kernel import filled
from tests.families.reduction.test_odd_rows import apart

SM_90A = Target.parse("sm_90a")
ONE_SM = Target("sm_90a", 1, SM_90A.max_shared_memory)  # one SM, so that a CTA processes several rows one after the other
IN_PLACE = softmax((41, 24), "f16").model_copy(update={"in_place": (("y", "x"),)})
PROBLEMS = {
    "a column": softmax((300, 1)),
    "two columns": softmax((130, 2), "f16"),
    "rows of a warp": softmax((67, 56), "bf16"),
    "several vectors of a lane": softmax((23, 336), "f16"),
    "places": reducer("argmax", "f32", (90, 14)),
    "places of a column": reducer("argmax", "bf16", (600, 1)),
    "sums": reducer("sum", "bf16", (55, 33)),
    "8 bytes": reducer("sum", "f64", (40, 3)),
    "1 byte": reducer("max", "i8", (40, 21)),
    "8 bits out": quantised((5, 7, 32)),
    "in place": IN_PLACE,
    "a warp": reducer("expsum", "f16", (5, 333)),
    "rows of a CTA": reducer("sum", "f32", (5, 704)),
    "a CTA": reducer("argmax", "bf16", (3, 5003)),
    "deviations": reducer("welford", "f16", (23, 285)),
    "deviations of a CTA": reducer("welford", "f32", (3, 3004)),
    "a weight": rms((41, 56), "f16"),
    "a weight, two outputs": rms((41, 48), "bf16", residual=True),
}
BEFORE = (0, 1, 5)  # numbers of elements before the first row


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    """Makes kernels copy rows through shared memory even if there are few rows."""
    monkeypatch.setattr(numbers, "LEAST_BYTES", 0)


def between(tensor, before):
    """(the tensor in the middle of memory that is filled with one byte, the whole memory)."""
    wide = torch.zeros(tensor.numel() + 64, dtype=tensor.dtype)
    wide.view(torch.uint8).fill_(0x5A)
    return wide[before : before + tensor.numel()].view(tensor.shape).copy_(tensor), wide


def full(problem, args):
    return [name for name in operands_of(problem) if getattr(args, name).ndim == len(problem.shape)]


@emulator.needed
@pytest.mark.parametrize("target", [SM_90A, ONE_SM], ids=["many CTAs", "few CTAs"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_contiguous_unaligned_rows_have_the_bits_of_separate_rows_and_nothing_else_is_written(name, target):
    problem = PROBLEMS[name]
    subject, args = emulator.subject(problem, device_like=target), filled(problem, 5)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(2)))
    assert dict(subject.plan.jit_spec.params)["flat"] is True
    other = replace(args, **{n: apart(getattr(args, n), 3)[0] for n in full(problem, args)})
    before = numerics.snapshot(problem, other)
    subject.run(other)
    assert numerics.check(problem, other, subject.plan.sku, before=before).worst <= 1
    for shift in BEFORE:
        moved = {n: between(getattr(args, n), shift) for n in full(problem, args)}
        call = replace(args, **{n: pair[0] for n, pair in moved.items()})
        subject.run(call)
        for one, same in zip(problem.written(call), problem.written(other), strict=True):
            assert not bool(differs(one, same.contiguous()).any())
        for tensor, wide in moved.values():
            beside = torch.cat([wide[:shift], wide[shift + tensor.numel() :]]).view(torch.uint8)
            assert bool((beside == 0x5A).all())


@emulator.needed
@pytest.mark.parametrize("target", [SM_90A, ONE_SM], ids=["many CTAs", "few CTAs"])
def test_rows_past_num_valid_are_not_written(target):
    problem = softmax((67, 24), "f16").model_copy(update={"num_valid": True})
    subject = emulator.subject(problem, device_like=target)
    for count in (0, 1, 40, 67, -1, 68):
        args = filled(problem, 6, valid=67)
        args = replace(args, in_0=between(args.in_0, 1)[0], out_0=between(args.out_0, 1)[0])
        args.num_valid.fill_(count)
        args.out_0.fill_(3.0)
        subject.run(args)
        rows = count if 0 <= count <= 67 else 0
        assert bool((args.out_0[rows:] == 3).all())
        assert rows == 0 or bool((args.out_0[:rows] != 3).any(1).all())


@emulator.needed
def test_the_result_does_not_depend_on_the_order_of_the_warps(monkeypatch):
    """Results are copied to global memory only after all warps have folded their rows."""
    for name in ("rows of a CTA", "rows of a warp"):
        problem = PROBLEMS[name]
        subject, args = emulator.subject(problem, device_like=ONE_SM), filled(problem, 5)
        subject.run(args)
        first = [tensor.clone() for tensor in problem.written(args)]
        with monkeypatch.context() as patched:
            emulator.last_first(patched)
            subject.run(args)
        for one, same in zip(first, problem.written(args), strict=True):
            assert not bool(differs(one, same).any())


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (reducer("sum", "f32", (9, 333)), True),
        (reducer("sum", "f32", (9, 701)), False),
        (reducer("argmax", "bf16", (9, 1)), True),
        (softmax((9, 57), "bf16"), False),
        (softmax((9, 56), "bf16"), True),
        (softmax((9, 1)), True),
        (quantised((5, 3, 33)), False),
        (quantised((5, 3, 32)), True),
        (reducer("welford", "f32", (9, 333)), True),
        (reducer("sum", "f32", (9, 70001)), False),
        (softmax((9, 333), "f16"), False),
        (softmax((9, 336), "f16"), True),
        (softmax((9, 57), "f32"), False),
        (softmax((9, 333), "f32"), False),
        (softmax((9, 1025), "bf16"), False),
        (softmax((9, 100), "bf16"), False),
        (rms((9, 61)), False),
        (rms((9, 56)), True),
        (rms((9, 61), "f32"), False),
        (rms((9, 1025)), False),
        (masked((9, 21)), False),
    ],
)
def test_the_flat_kernel_is_selected_where_it_is_faster(problem, wanted):
    assert dict(Plan.select(problem, Preference(backend="cuda"), SM_90A).jit_spec.params).get("flat", False) is wanted


@emulator.needed
def test_a_problem_with_few_rows_does_not_use_shared_memory(monkeypatch):
    """A few rows take as long as one row, so copying them would not save time."""
    monkeypatch.setattr(numbers, "LEAST_BYTES", 2 * 2**20)
    problem = PROBLEMS["sums"]
    with emulator.edited("kernels/reduction/flat.cuh", ("copy_in(At<0>{});", "return;")):
        args = filled(problem, 5)
        subject = emulator.subject(problem)
        before = numerics.snapshot(problem, args)
        subject.run(args)
        assert numerics.check(problem, args, subject.plan.sku, before=before).worst <= 1


@pytest.mark.parametrize(("width", "vector"), [(1, 2), (2, 2), (3, 8), (100, 8)])
def test_rows_of_one_or_two_columns_have_short_vectors(width, vector):
    problem = softmax((9, width), "f16")
    assert dict(Plan.select(problem, Preference(backend="cuda"), SM_90A).jit_spec.params)["vector"] == vector


def test_a_vector_consists_of_whole_words_of_each_tensor():
    assert dict(Plan.select(quantised((9, 3, 1)), Preference(backend="cuda"), SM_90A).jit_spec.params)["vector"] == 4
