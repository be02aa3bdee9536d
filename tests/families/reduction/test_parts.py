"""Rows that are read twice are split into parts. If there are few rows, several CTAs share a row; the bits of a row do not
depend on this choice."""

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.folds import config as fold_config
from opfacade.backends.cuda.folds.strategies import rows as numbers
from opfacade.core.descriptor import operands_of
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.reduction.forms import layer, reducer, rms, softmax
from tests.families.reduction.test_fold_kernel import filled, held

SM_90A = Target.parse("sm_90a")
ROWS = 2
PROBLEMS = {
    "welford": reducer("welford", "f32", (ROWS, 24700)),
    "argmax": reducer("argmax", "bf16", (ROWS, 60001)),
    "expsum": reducer("expsum", "f32", (ROWS, 33000)),
    "softmax": softmax((ROWS, 70001)),
    "two stages": layer((ROWS, 66004)),
}


def on(problem, sms):
    """(SKU, results) of the kernel for a GPU with this number of SMs."""
    target = Target("sm_90a", sms, SM_90A.max_shared_memory)
    subject, args = emulator.subject(problem, device_like=target), filled(problem, 5)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(3)))
    held(subject, args)
    return subject.plan.sku.id, [tensor.clone() for tensor in problem.written(args)]


@emulator.needed
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_bits_do_not_depend_on_how_many_ctas_share_a_row(name, monkeypatch):
    """The row has one CTA, two CTAs, and one CTA per part; the last CTA also runs first."""
    sku, alone = on(PROBLEMS[name], 1)
    assert all(fact in sku for fact in ("run=4,", "span=512,", "stream=true"))
    found = [on(PROBLEMS[name], sms) for sms in (2, 132)]
    emulator.last_first(monkeypatch)
    for other, results in (*found, on(PROBLEMS[name], 132)):
        assert other == sku
        for one, same in zip(alone, results, strict=True):
            assert not bool(differs(one, same).any())


@pytest.mark.parametrize("vectors", [1, 4096, 512 * 4 * 32, 512 * 4 * 32 + 1, 500_000, 2**28])
def test_the_number_of_parts_of_a_row_does_not_exceed_the_limit(vectors):
    pieces, run = -(-vectors // 512), fold_config._run(vectors)
    assert -(-pieces // run) <= numbers.MAX_PARTS
    assert run == 4 or -(-pieces // (run // 2)) > numbers.MAX_PARTS


def test_the_largest_cluster_size_of_each_architecture():
    found = {arch: fold_config.most_ctas(Target.parse(arch)) for arch in ("sm_80", "sm_90a", "sm_100a", "sm_120a")}
    assert found == {"sm_80": 1, "sm_90a": 16, "sm_100a": 16, "sm_120a": 8}


@pytest.mark.gpu
@pytest.mark.parametrize("make", [softmax, rms, layer])
@pytest.mark.parametrize(("rows", "width"), [(300, 140_000), (140, 151_937), (133, 500_001), (9, 2_000_000)])
def test_a_single_row_has_the_same_bits_as_among_many_on_a_gpu(make, rows, width):
    many = inputs.make_args(make((rows, width), "bf16"), 3, "cuda")
    results = []
    for count in (rows, 40, 1):
        problem = make((min(count, rows), width), "bf16")
        given = {name: getattr(many, name) for name in operands_of(problem)}
        args = type(many)(**{name: (one[:count] if one.ndim == 2 else one).clone() for name, one in given.items()})
        plan = Plan.select(problem, Preference(backend="cuda"))
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, 8).worst <= 1
        results.append(args.out_0[:1].cpu())
    assert not any(bool(differs(results[0], other).any()) for other in results[1:])
