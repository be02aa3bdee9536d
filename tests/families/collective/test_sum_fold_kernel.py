"""The emulated sum over ranks and its norm in one launch: every rank is a thread, and stores to peers arrive as late as the
memory model allows."""

import math

import pytest
import torch

from opfacade.backends.cuda.collective import sum_fold
from opfacade.core.target import Target
from opfacade.plans._quantize.quant import Quant
from opfacade.plans.collective import AllReduceNormArgs, AllReduceNormDescriptor
from tests import emulator
from tests.support.local_peers import Modules, on_peers
from tests.support.local_ranks import same

pytestmark = emulator.needed
TARGET = Target.parse("sm_90a")
MODULES = Modules()
KINDS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i8": torch.int8, "f8_e4m3": torch.float8_e4m3fn}


def descriptor(world=2, rows=7, hidden=64, **fields):
    return AllReduceNormDescriptor(**({"world": world, "total_num_rows": rows, "hidden": hidden, "dtype": "bf16"} | fields))


def parts(d, seed=0):
    """x of each rank, residual and weight. The magnitudes differ so much that the result depends on the order of the sum."""
    g, dtype = torch.Generator().manual_seed(seed), KINDS[d.dtype]
    rows, hidden = d.total_num_rows, d.hidden
    scale = 10.0 ** torch.randint(-2, 3, (d.world, rows, hidden), generator=g)
    x = (torch.randn(d.world, rows, hidden, generator=g) * scale).to(dtype)
    return list(x), torch.randn(rows, hidden, generator=g).to(dtype), torch.randn(hidden, generator=g).to(dtype)


def args_of(d, rank, group, given, num_valid=None, scale=None):
    x, residual, weight = given
    own = None
    if d.residual == "replicated":
        own = residual.clone()
    elif d.residual == "row_sharded":
        own = torch.full((d.own_rows, d.hidden), math.nan, dtype=residual.dtype)
        mine = residual[rank :: d.world]
        own[: len(mine)] = mine
    made = {}
    for name, spec in d.operands().items():
        if spec.role == "out":
            shape, kind = [dim.size for dim in spec.shape], KINDS[spec.dtype]
            made[name] = torch.full(shape, -77, dtype=kind) if kind == torch.int8 else torch.full(shape, -7.0).to(kind)
    made |= {} if scale is None else {"scale": scale}
    return AllReduceNormArgs(x=x[rank], weight=weight, residual=own, num_valid=num_valid, group=group, **made)


def written(d, args):
    return {name: getattr(args, name) for name, spec in d.operands().items() if spec.written}


def run(d, group, args):
    module = MODULES.of(group.rank, sum_fold.jit_spec(d, TARGET))
    sum_fold.runner(d, TARGET, module)(args, group.link)
    return written(d, args)


def alone(d, given, scale=None):
    """The norm of the sum from the emulated kernel of one GPU."""
    x = given[0]
    total = x[0].float()
    for term in x[1:]:
        total = total + term.float()
    problem = d.model_copy(update={"num_valid": False}).normed_rows(d.total_num_rows)
    args = args_of(
        d.model_copy(update={"residual": "replicated" if d.residual != "none" else "none"}), 0, None, given, None, scale
    )
    tensors = {name: getattr(args, name) for name in problem.operands()} | {"x": total.to(KINDS[d.dtype])}
    own = problem.args_type(**tensors)
    emulator.subject(problem).run(own)
    return {name: getattr(own, name) for name, spec in problem.operands().items() if spec.written}


CASES = {
    "plain": {},
    "residual": {"residual": "replicated"},
    "three": {"world": 3, "residual": "replicated", "quant": Quant(scale="token"), "full_out": True},
    "static": {"residual": "replicated", "quant": Quant(scale="static")},
    "groups": {"residual": "replicated", "quant": Quant(scale="group", group=16, scale_layout="column")},
    "integers": {"quant": Quant(dtype="i8", scale="token")},
    "odd": {"hidden": 65, "residual": "replicated"},
    "long": {"hidden": 640, "dtype": "f16", "rows": 5},
    "layer": {"norm": "layer", "dtype": "f32", "world": 5, "rows": 3, "residual": "replicated"},
    "many rows": {"rows": 70, "residual": "replicated"},
}


WAYS = [
    pytest.param("one_shot", 0, id="one_shot"),
    pytest.param("two_shot", 0, id="two_shot"),
    pytest.param("one_shot", 1 << 16, id="lines"),
]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize(("steps", "flagged"), WAYS)
@pytest.mark.parametrize("case", CASES)
def test_every_rank_has_the_bits_of_one_gpu(case, steps, flagged, monkeypatch):
    monkeypatch.setattr(sum_fold, "MOST_CTAS", 3)  # each CTA computes several rows
    d = descriptor(**CASES[case], steps=steps)
    given = parts(d)
    scale = torch.tensor([0.37]) if d.quant is not None and d.quant.scale == "static" else None
    want = alone(d, given, scale)
    found = on_peers(
        d.world, 4096, lambda group: run(d, group, args_of(d, group.rank, group, given, None, scale)), flagged=flagged
    )
    for name, tensor in want.items():
        assert same([one[name] for one in found])
        assert torch.equal(bits(found[0][name]), bits(tensor)), name


@pytest.mark.parametrize("most", [sum_fold.MOST_HELD, 128])
def test_sums_are_kept_in_shared_or_global_memory_until_the_fold(most, monkeypatch):
    monkeypatch.setattr(sum_fold, "MOST_CTAS", 2)  # each CTA computes several rows, one after another
    monkeypatch.setattr(sum_fold, "MOST_HELD", most)
    d = descriptor(hidden=640, rows=9, residual="replicated")
    given = parts(d)
    want = alone(d, given)
    found = on_peers(2, 1 << 15, lambda group: run(d, group, args_of(d, group.rank, group, given)), flagged=1 << 16)
    assert all(torch.equal(bits(one[name]), bits(tensor)) for one in found for name, tensor in want.items())


def test_a_row_sharded_residual_stays_on_its_rank():
    d = descriptor(world=3, residual="row_sharded")
    given = parts(d)
    want = alone(d, given)
    found = on_peers(3, 4096, lambda group: run(d, group, args_of(d, group.rank, group, given)))
    for rank, one in enumerate(found):
        assert torch.equal(bits(one["out"]), bits(want["out"]))
        mine = want["residual"][rank::3]
        assert torch.equal(bits(one["residual"][: len(mine)]), bits(mine))
        assert one["residual"][len(mine) :].isnan().all()


@pytest.mark.parametrize(("steps", "flagged"), WAYS)
@pytest.mark.parametrize("count", [0, 1, 4, 7, 8, -1])
def test_rows_past_num_valid_are_not_written(count, steps, flagged):
    d = descriptor(residual="replicated", num_valid=True, steps=steps)
    given, valid = parts(d), torch.tensor([count], dtype=torch.int32)
    want, rows = alone(d, given), count if 0 <= count <= 7 else 0
    found = on_peers(2, 320, lambda group: run(d, group, args_of(d, group.rank, group, given, valid)), flagged=flagged)
    for one in found:
        for name, before in (("out", torch.full((7, 64), -7.0)), ("residual", given[1])):
            assert torch.equal(bits(one[name][:rows]), bits(want[name][:rows]))
            assert torch.equal(one[name][rows:].float(), before[rows:].float())


@pytest.mark.parametrize(("steps", "flagged"), WAYS)
def test_consecutive_calls_of_different_sizes_give_right_results(steps, flagged):
    """Plans with other grids and forms alternate on one arena, near the overflow of the 32-bit round number."""
    known = [
        descriptor(rows=rows, hidden=hidden, steps=steps, residual="replicated")
        for rows, hidden in ((8, 640), (2, 72), (1, 64))
    ]
    known += [descriptor(rows=3, steps="one_shot" if steps == "two_shot" else "two_shot")]
    given = [[parts(d, seed) for seed in range(3)] for d in known]
    want = [[alone(d, one)["out"] for one in of] for d, of in zip(known, given, strict=True)]

    def calls(group):
        group.link.start_at(2**32 - 3)
        found = []
        for seed in range(3):
            for d, of in zip(known, given, strict=True):
                found.append(run(d, group, args_of(d, group.rank, group, of[seed]))["out"])
        return found, group.link.launches

    for found, launches in on_peers(2, 4000, calls, flagged=flagged and 300):
        made = iter(found)
        for seed in range(3):
            for of in want:
                assert torch.equal(bits(next(made)), bits(of[seed]))
        assert launches > 12


@pytest.mark.parametrize(("steps", "flagged"), WAYS)
def test_the_bits_do_not_depend_on_strides(steps, flagged):
    d = descriptor(residual="replicated", steps=steps, quant=Quant(scale="token"))
    given = parts(d)
    want = alone(d, given)

    def call(group):
        args = args_of(d, group.rank, group, given)
        x, residual = torch.zeros(7, 128, dtype=torch.bfloat16), torch.zeros(64, 7, dtype=torch.bfloat16).t()
        x[:, 64:], out = args.x, torch.zeros(7, 100).to(torch.float8_e4m3fn)[:, 3:67]
        residual.copy_(args.residual)
        args = AllReduceNormArgs(x=x[:, 64:], weight=args.weight, residual=residual, out=out, scale=args.scale, group=group)
        return run(d, group, args)

    for found in on_peers(2, 4096, call, flagged=flagged):
        assert all(torch.equal(bits(found[name]), bits(tensor)) for name, tensor in want.items())


@pytest.mark.parametrize(("steps", "flagged"), WAYS)
@pytest.mark.parametrize(("act", "told"), [("stays away", (0b10, 0)), ("other plan", (0, 0b10)), ("other count", (0, 0b10))])
def test_a_rank_that_does_not_come_or_differs_is_named_and_outputs_say_so(steps, flagged, act, told):
    d = descriptor(residual="replicated", num_valid=True, steps=steps, quant=Quant(dtype="i8", scale="token"), full_out=True)
    given = parts(d)

    def call(group):
        if group.rank == 1 and act == "stays away":
            return None
        odd, found = group.rank == 1, []
        for first in (True, False):  # only the first call differs; the second would be valid by itself
            group.link.digest = 8 if odd and first and act == "other plan" else 7
            count = torch.tensor([3 if odd and first and act == "other count" else 5], dtype=torch.int32)
            found.append(run(d, group, args_of(d, group.rank, group, given, count)))
        return found, group.link.failed

    found, failed = on_peers(2, 4096, call, patience_s=0.5, flagged=flagged)[0]
    assert failed == told
    for one in found:  # the second call fails like the first
        assert all(one[name][:5].float().isnan().all() for name in ("scale", "full_out", "residual"))
        assert (one["out"][:5] == -1).all()
        assert (one["out"][5:] == -77).all()


def test_a_rank_without_valid_rows_detects_that_other_ranks_have_some():
    d = descriptor(num_valid=True)
    given = parts(d)

    def call(group):
        run(d, group, args_of(d, group.rank, group, given, torch.tensor([5 * group.rank], dtype=torch.int32)))
        return group.link.failed

    assert on_peers(2, 4096, call, patience_s=0.5, flagged=1 << 16) == [(0, 0b10), (0, 0b01)]


def test_long_rows_and_unsupported_world_sizes_are_declined():
    assert not list(sum_fold.declines(descriptor(hidden=16384, residual="replicated"), TARGET))
    for fields in ({"hidden": 200_000}, {"world": 9}, {"norm": "none", "weight": "none"}):
        assert list(sum_fold.declines(descriptor(**fields), TARGET))
