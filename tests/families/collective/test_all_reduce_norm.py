"""The sum over ranks with residual, norm and quantisation, against an independent computation in numpy and in all transport
modes."""

import math

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference
from opfacade.errors import DescriptorError, GroupError
from opfacade.plans.collective import AllReduceNormArgs, AllReduceNormDescriptor
from opfacade.plans.norm import NormArgs, NormDescriptor
from opfacade.plans.quantize import Quant
from tests.support.local_ranks import on_ranks, same

WORLDS = (1, 2, 3, 5)
ROWS, HIDDEN = 7, 64


def parts(world, seed=0, dtype=torch.bfloat16):
    """x of each rank, and the inputs that all ranks share. The magnitudes differ so much that the result depends on the order
    of the sum."""
    g = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-3, 4, (world, ROWS, HIDDEN), generator=g)
    x = (torch.randn(world, ROWS, HIDDEN, generator=g) * scale).to(dtype)
    return list(x), torch.randn(ROWS, HIDDEN, generator=g).to(dtype), torch.randn(HIDDEN, generator=g).to(dtype)


def descriptor(world, **fields):
    return AllReduceNormDescriptor(**({"world": world, "total_num_rows": ROWS, "hidden": HIDDEN, "dtype": "bf16"} | fields))


def outputs(d):
    """Output tensors, filled with NaN or -77."""
    found = {}
    for name, spec in d.operands().items():
        if spec.role == "out":
            shape, dtype = [dim.size for dim in spec.shape], {"bf16": torch.bfloat16, "f32": torch.float32, "i8": torch.int8}
            kind = dtype.get(spec.dtype, torch.float8_e4m3fn)
            found[name] = torch.full(shape, -77, dtype=kind) if kind == torch.int8 else torch.full(shape, math.nan).to(kind)
    return found


def call(d, x, residual, weight, num_valid=None, scale=None):
    """Runs one rank and returns its outputs by name, including residual, which the op overwrites."""

    def of(group):
        own = None
        if d.residual == "replicated":
            own = residual.clone()
        elif d.residual == "row_sharded":
            own = torch.full((d.own_rows, HIDDEN), math.nan, dtype=residual.dtype)
            mine = residual[group.rank :: d.world]
            own[: len(mine)] = mine
        made = outputs(d)
        given = made if scale is None else made | {"scale": scale}
        args = AllReduceNormArgs(
            x=x[group.rank],
            residual=own,
            weight=None if d.weight == "none" else weight,
            num_valid=num_valid,
            group=group,
            **given,
        )
        Plan.select(d, prefer=Preference(require={"rank_invariant": "ranks"})).run(args)
        return made if own is None else made | {"residual": own}

    return of


def by_hand(x, residual, weight, eps=1e-6):
    """(out before its rounding, residual) in numpy: sums in f32 in the order of the ranks, one rounding, and a norm in f64."""
    total = x[0].float().numpy()
    for part in x[1:]:
        total = (total + part.float().numpy()).astype(np.float32)
    total = torch.from_numpy(total).to(x[0].dtype).float().numpy()
    summed = (total + residual.float().numpy()).astype(np.float32)
    wide = summed.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(1, keepdims=True) + eps) * weight.double().numpy()
    return normed, torch.from_numpy(summed).to(x[0].dtype)


@pytest.mark.parametrize("world", WORLDS)
def test_one_step_and_two_have_the_bits_of_sums_by_hand(world):
    x, residual, weight = parts(world)
    want, kept = by_hand(x, residual, weight)
    found = []
    for steps in ("one_shot", "two_shot", "auto"):
        ranks = on_ranks(world, call(descriptor(world, residual="replicated", steps=steps), x, residual, weight))
        assert all(torch.equal(one["residual"], kept) for one in ranks)
        found += [one["out"] for one in ranks]
    assert same(found)
    difference = np.abs(found[0].double().numpy() - want)
    assert (difference <= np.abs(want) * 2**-8 * 1.001 + 1e-30).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"quant": Quant(dtype="i8", scale="token"), "full_out": True},
        {"quant": Quant(group=16, scale_layout="column_padded4"), "residual_sum": "rounded"},
        {"quant": Quant(scale="none"), "normed": "rounded", "weight": "one_plus"},
        {"norm": "layer", "residual": "none", "quant": Quant(scale="token", scale_dtype="f32")},
    ],
    ids=["i8", "groups", "plain8", "layer"],
)
def test_the_norm_of_the_sum_has_the_bits_of_a_separate_norm(fields):
    """The separate norm reads the rounded sum. A residual that is sharded by rows gives the same bits as a replicated one."""
    world = 3
    x, residual, weight = parts(world, 1)
    total = x[0].float()
    for part in x[1:]:
        total = total + part.float()
    for where in ("replicated", "row_sharded"):
        for steps in ("auto", "one_shot", "two_shot"):
            if where == "row_sharded" and (steps == "one_shot" or fields.get("residual") == "none"):
                continue
            d = descriptor(world, **({"residual": where, "steps": steps} | fields))
            kind = {"kind": d.norm, "total_num_rows": ROWS, "residual": d.residual != "none"}
            shared = ("hidden", "dtype", "weight", "residual_sum", "normed", "quant", "full_out")
            norm = NormDescriptor(**kind, **{name: getattr(d, name) for name in shared})
            made, copied = outputs(norm), residual.clone()
            given = {"residual": copied} if norm.residual else {}
            Plan.select(norm).run(NormArgs(x=total.bfloat16(), weight=weight, **given, **made))
            for rank, one in enumerate(on_ranks(world, call(d, x, residual, weight))):
                for name, tensor in made.items():
                    cut = slice(0, ROWS) if name == "scale" and d.quant.scale == "group" else slice(None)
                    assert same([one[name][..., cut], tensor[..., cut]]), (where, steps, name)
                if where == "row_sharded":
                    mine = copied[rank::world]
                    assert same([one["residual"][: len(mine)], mine])
                    assert one["residual"][len(mine) :].isnan().all()
                elif norm.residual:
                    assert same([one["residual"], copied])


@pytest.mark.parametrize("residual", ["none", "replicated", "row_sharded"])
def test_norm_residual_and_quantisation_are_optional(residual):
    """Without a norm, the op adds the residual to the rounded sum and divides by the maximum of a row."""
    world = 5
    x, kept, _ = parts(world, 2)
    total = x[0].float()
    for part in x[1:]:
        total = total + part.float()
    total = total.bfloat16()
    total = total if residual == "none" else (total.float() + kept.float()).bfloat16()
    plain = descriptor(world, norm="none", weight="none", residual=residual)
    assert same([one["out"] for one in on_ranks(world, call(plain, x, kept, None))] + [total])
    scale = (total.float().abs().amax(1) / 127.0).clamp(min=1e-10 / 127)
    want = (total.double() / scale[:, None].double()).round().to(torch.int8)
    quant = Quant(dtype="i8", scale="token")
    for steps in ("auto", "two_shot"):
        d = descriptor(world, norm="none", weight="none", residual=residual, quant=quant, full_out=True, steps=steps)
        for one in on_ranks(world, call(d, x, kept, None)):
            assert same([one["full_out"], total])
            torch.testing.assert_close(one["scale"], scale, rtol=2**-23, atol=0)
            assert (one["out"].int() - want.int()).abs().max() <= 1
            assert (one["out"] != want).float().mean() < 0.02


@pytest.mark.parametrize("valid", [0, 4, 7, 99])
def test_rows_past_num_valid_are_not_written(valid):
    """With an invalid count, no row is valid, on every rank and in both modes."""
    world = 2
    x, residual, weight = parts(world, 3)
    count = valid if valid <= ROWS else 0
    whole = on_ranks(world, call(descriptor(world, residual="replicated"), x, residual, weight))[0]
    poisoned = [part.clone() for part in x]
    for part in poisoned:
        part[count:] = math.nan
    for steps in ("one_shot", "two_shot"):
        d = descriptor(world, residual="replicated", num_valid=True, steps=steps)
        counter = torch.tensor([valid], dtype=torch.int32)
        for one in on_ranks(world, call(d, poisoned, residual, weight, counter)):
            assert same([one["out"][:count], whole["out"][:count]])
            assert same([one["residual"][:count], whole["residual"][:count]])
            assert one["out"][count:].isnan().all()
            assert same([one["residual"][count:], residual[count:]])


def test_large_messages_and_sharded_residuals_use_two_steps():
    """At 4 ranks with a replicated bf16 residual, two steps are faster from 1.17 MB on; at 2 ranks, they never are."""
    row = {"hidden": 8192, "residual": "replicated", "weight": "scale"}
    assert not descriptor(4, total_num_rows=64, **row).two_shot
    assert descriptor(4, total_num_rows=80, **row).two_shot
    assert not descriptor(2, total_num_rows=4096, **row).two_shot
    assert descriptor(2, residual="row_sharded").two_shot
    assert not descriptor(1, residual="row_sharded", total_num_rows=4096).two_shot
    # The first of two steps sends 20 rows, the second 20 results of out and of residual. Both have two halves per rank with a
    # header line.
    assert descriptor(4, total_num_rows=80, **row).symmetric_size == 2 * 4 * (20 * 16384 + 128 + 40 * 16384 + 128)
    assert descriptor(4, total_num_rows=64, **row).symmetric_size == 2 * 4 * (64 * 16384 + 128)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"norm": "none"}, "weight"),
        ({"norm": "none", "weight": "none", "normed": "rounded"}, "norm"),
        ({"quant": Quant(scale="tensor")}, "quant.scale"),
        ({"quant": Quant(group=60)}, "quant.group"),
        ({"residual": "row_sharded", "steps": "one_shot"}, "steps"),
        ({"residual": "row_sharded", "num_valid": True}, "num_valid"),
        ({"full_out": True}, "full_out"),
        ({"eps": -1.0}, "eps"),
    ],
)
def test_contradictory_fields_are_refused(fields, match):
    with pytest.raises(DescriptorError, match=match):
        descriptor(2, **fields)


def test_after_a_failure_no_output_contains_a_valid_number():
    """Integer outputs contain the fill value of the group, and their scales contain NaN."""

    class Broken:
        name, rank, world, fill_id = "broken", 0, 2, 5

        def issues(self, descriptor):
            return []

        def exchange(self, descriptor, outgoing, facts):
            raise GroupError("rank 1 is gone", code="OPF-N001", op="all_reduce_norm", stage="run")

    x, residual, weight = parts(2)
    d = descriptor(2, residual="replicated", quant=Quant(dtype="i8", scale="token"), full_out=True)
    made, own = outputs(d), residual.clone()
    args = AllReduceNormArgs(x=x[0], residual=own, weight=weight, group=Broken(), **made)
    with pytest.raises(GroupError, match="rank 1 is gone"):
        Plan.select(d).run(args)
    assert (made["out"] == 5).all()
    for tensor in (own, made["full_out"], made["scale"]):
        assert tensor.isnan().all()
