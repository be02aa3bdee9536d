"""A few rows that are too long for registers: all CTAs of the GPU share each row and give the bits of one CTA."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.reduction.forms import layer, reducer, rms, softmax
from tests.families.reduction.test_fold_kernel import filled
from tests.families.reduction.test_odd_rows import apart

SM_90A = Target.parse("sm_90a")
ONE_SM = Target("sm_90a", 1, SM_90A.max_shared_memory)
ROWS = 3
PROBLEMS = {
    "softmax": softmax((ROWS, 70001)),
    "16 bits": softmax((ROWS, 140008), "bf16"),
    "weights": rms((ROWS, 140003), "bf16"),
    "in place": rms((ROWS, 70004), "f32", residual=True),
}


def run(problem, target, args):
    subject = emulator.subject(problem, device_like=target)
    before = numerics.snapshot(problem, args)
    subject.run(args)
    assert numerics.check(problem, args, subject.plan.sku, before=before).worst <= 1
    return subject.plan, [tensor.clone().contiguous() for tensor in problem.written(args)]


def drawn(problem):
    args = filled(problem, 5)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(3)))
    return args


def copied(args, problem):
    return replace(args, **{name: getattr(args, name).clone() for name in operands_of(problem)})


@emulator.needed
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_whole_gpu_gives_the_bits_of_one_cta(name, monkeypatch):
    """On contiguous rows, and on rows with gaps; also with the last CTA first. The workspace holds garbage before."""
    problem = PROBLEMS[name]
    args = drawn(problem)
    alone, wanted = run(problem, ONE_SM, copied(args, problem))
    assert alone.workspace_size == 0
    names = [n for n in operands_of(problem) if getattr(args, n).ndim == 2]
    calls = [copied(args, problem), replace(args, **{n: apart(getattr(args, n), 3)[0] for n in names})]
    emulator.last_first(monkeypatch)
    for call in calls:
        plan, found = run(problem, SM_90A, call)
        assert plan.workspace_size > 0
        assert plan.sku.id == alone.sku.id
        assert plan.jit_spec != alone.jit_spec
        for one, same in zip(found, wanted, strict=True):
            assert not bool(differs(one, same).any())


@emulator.needed
def test_rows_past_num_valid_are_not_written():
    problem = softmax((ROWS, 70001)).model_copy(update={"num_valid": True})
    subject = emulator.subject(problem)
    assert subject.plan.workspace_size > 0
    for count in (0, 2, -1):
        args = filled(problem, 6, valid=ROWS)
        args.num_valid.fill_(count)
        args.out_0.fill_(3.0)
        subject.run(args)
        rows = max(count, 0)
        assert bool((args.out_0[rows:] == 3).all())
        assert bool((args.out_0[:rows] != 3).any(1).all())


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (softmax((300, 70001)), "many rows fill the GPU one by one"),
        (softmax((3, 5000)), "they fit registers"),
        (layer((3, 70001)), "a stage uses another"),
        (reducer("argmax", "f32", (3, 70001)), "elements are read once, and split='auto' is for those"),
    ],
)
def test_other_rows_need_no_workspace(problem, why):
    assert Plan.select(problem, Preference(backend="cuda"), SM_90A).workspace_size == 0, why


def test_the_workspace_has_one_state_per_warp_of_each_part():
    plan = Plan.select(softmax((3, 70001)), Preference(backend="cuda"), SM_90A)
    parts, warps, state = -(-70001 // (512 * 4 * 4)), 16, 8  # 512 threads, each with four vectors of four elements
    assert plan.workspace_size == -(-3 * parts * warps * state // 256) * 256


@pytest.mark.gpu
@pytest.mark.parametrize("make", [softmax, rms])
@pytest.mark.parametrize(("rows", "width"), [(1, 140_000), (1, 1_101_238), (15, 947_987), (40, 151_937)])
def test_a_few_long_rows_keep_the_bound_and_the_bits_of_many_rows_on_a_gpu(make, rows, width):
    many = 300 if width < 200_000 else rows
    problem = make((rows, width), "bf16")
    args = inputs.make_args(problem, 3, "cuda")
    plan = Plan.select(problem, Preference(backend="cuda"))
    assert plan.workspace_size > 0
    plan.run(args, torch.full((plan.workspace_size,), 0xA5, dtype=torch.uint8, device="cuda"))
    assert numerics.check(problem, args, plan.sku, 8).worst <= 1
    if many == rows:
        return
    whole = make((many, width), "bf16")
    all_of = inputs.make_args(whole, 4, "cuda")
    all_of.in_0[:rows].copy_(args.in_0)
    if make is rms:
        all_of.in_1.copy_(args.in_1)
    other = Plan.select(whole, Preference(backend="cuda"))
    assert other.workspace_size == 0
    other.run(all_of)
    assert not bool(differs(all_of.out_0[:rows].cpu(), args.out_0.cpu()).any())
