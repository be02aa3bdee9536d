"""Conversions of weights against layouts that plain loops build from codes, on the reference and on an emulated device."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import ArgumentError, DescriptorError, IndexDataError
from opfacade.plan import forget_selections
from opfacade.plans._composites.composed import composed
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor
from opfacade.plans.weights import EXAMPLES, PackWeightsArgs, PackWeightsDescriptor, UnpackWeightsDescriptor, Weight
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.weights import by_hand

N, K = 24, 128
DEVICES = [pytest.param("reference"), pytest.param("cuda", marks=emulator.needed)]
INT = {"dtype": "uint4", "group": 32, "scale_dtype": "f16", "zero": "int"}
ADDED = {"dtype": "int4", "group": 32, "zero": "added"}


def run(device, d, args):
    if device == "cuda":
        emulator.subject(d).run(args)
    else:
        Plan.select(d, Preference(backend="reference"), Target.cpu()).run(args)


def drawn(seed=0, many=4):
    generator = torch.Generator().manual_seed(seed)
    codes, zeros = (torch.randint(0, 16, shape, generator=generator) for shape in ((N, K), (N, many)))
    codes[:2, :3] = torch.tensor([[0, 15, 8], [7, 1, 14]])
    zeros[:2, 0] = torch.tensor([0, 15])
    return codes, zeros


def signed(codes):
    """The codes plus 8 as 4-bit two's complement."""
    return (codes - 8) % 16


CODES, ZEROS = drawn()
SCALE = torch.rand(N, 4, generator=torch.Generator().manual_seed(1)) + 0.5
FLOATS = torch.randn(N, 4, generator=torch.Generator().manual_seed(2))
BYTES = ZEROS.to(torch.uint8)


def case(source, weight, stored, ours=CODES, **tables):
    """A case. `tables` contains the scales and zero points of the checkpoint and of the library, by operand name."""
    return source, weight, {"stored_weight": stored, "weight": by_hand.pairs(ours), **tables}


def scales(dtype, turned=True, **tables):
    scale = SCALE.to(dtype)
    return {"stored_scale": scale.T.contiguous() if turned else scale, "weight_scale": scale} | tables


HALF, BF16 = torch.float16, torch.bfloat16
OF_INT = {"weight_zero": BYTES}
OF_ADDED = {"stored_zero": FLOATS.to(BF16).T.contiguous(), "weight_zero": FLOATS.to(BF16)}
ORDER = torch.randint(0, 4, (K,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
GROUPS = {"stored_groups": ORDER, "weight_groups": ORDER}
POWERS = torch.randint(0, 255, (N, 4), generator=torch.Generator().manual_seed(4)).to(torch.uint8).view(torch.float8_e8m0fnu)
E4M3 = torch.randint(0, 127, (N, 8), generator=torch.Generator().manual_seed(5)).to(torch.uint8).view(torch.float8_e4m3fn)
CASES = {
    "gptq": case("gptq", INT, by_hand.gptq(CODES), stored_zero=by_hand.gptq_zeros(ZEROS), **scales(HALF), **OF_INT),
    "gptq with activation order": case(
        "gptq", INT | {"group": None, "num_groups": 4}, by_hand.gptq(CODES), stored_zero=by_hand.gptq_zeros(ZEROS),
        **scales(HALF), **OF_INT, **GROUPS,
    ),
    "gptq_v2": case("gptq_v2", INT, by_hand.gptq(CODES), stored_zero=by_hand.gptq_zeros(ZEROS + 1), **scales(HALF), **OF_INT),
    "awq": case("awq", INT, by_hand.awq(CODES), stored_zero=by_hand.awq(ZEROS), **scales(HALF), **OF_INT),
    "compressed_tensors": case(
        "compressed_tensors", {"dtype": "int4", "group": 32}, by_hand.compressed(CODES), signed(CODES), **scales(BF16, False)
    ),
    "compressed_tensors with zero points": case(
        "compressed_tensors", INT, by_hand.compressed(CODES), stored_zero=by_hand.compressed_zeros(ZEROS),
        **scales(HALF, False), **OF_INT,
    ),
    "hqq": case(
        "hqq", INT | {"zero": "float"}, by_hand.hqq(CODES, 32), stored_scale=SCALE.to(HALF).reshape(-1, 1),
        weight_scale=SCALE.to(HALF), stored_zero=FLOATS.to(HALF).reshape(-1, 1), weight_zero=FLOATS.to(HALF),
    ),
    "torchao": case("torchao", ADDED, by_hand.pairs(CODES), **scales(BF16), **OF_ADDED),
    "tinygemm of 2": case("tinygemm-2", ADDED, by_hand.tinygemm(CODES, 2), signed(CODES), **scales(BF16), **OF_ADDED),
    "tinygemm of 4": case("tinygemm-4", ADDED, by_hand.tinygemm(CODES, 4), signed(CODES), **scales(BF16), **OF_ADDED),
    "tinygemm of 8": case("tinygemm-8", ADDED, by_hand.tinygemm(CODES, 8), signed(CODES), **scales(BF16), **OF_ADDED),
    "mxfp4": case(
        "mxfp4", {"dtype": "e2m1", "group": 32, "scale_dtype": "f8_e8m0"}, by_hand.pairs(CODES).reshape(N, 4, 16),
        stored_scale=POWERS, weight_scale=POWERS,
    ),
    "nvfp4": case(
        "nvfp4", {"dtype": "e2m1", "group": 16, "scale_dtype": "f8_e4m3"}, by_hand.pairs(CODES),
        stored_scale=E4M3, weight_scale=E4M3,
    ),
}  # fmt: skip


def problem(kind, name, **more):
    source, weight, _ = CASES[name]
    source, _, inner = source.partition("-")
    given = {"inner_k_tiles": int(inner)} if inner else {}
    return kind(**{"source": source, "n": N, "k": K, "weight_format": Weight(**weight), **given, **more})


def emptied(d, tensors):
    """Copies of the tensors; tensors that the op writes are filled with other bits."""
    written = [name for name, spec in d.operands().items() if spec.written]
    return replace(
        PackWeightsArgs(**{name: tensor.clone() for name, tensor in tensors.items()}),
        **{name: (tensors[name].view(torch.uint8) ^ 0x5A).view(tensors[name].dtype) for name in written},
    )


def same(left, right):
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [PackWeightsDescriptor, UnpackWeightsDescriptor])
@pytest.mark.parametrize("name", CASES)
def test_codes_lie_where_the_library_has_them(name, kind, device):
    """Packing converts the checkpoint's tensors to the library's, and unpacking converts them back, bit for bit."""
    d, tensors = problem(kind, name), CASES[name][2]
    assert set(d.operands()) == set(tensors)
    args = emptied(d, tensors)
    run(device, d, args)
    assert [one for one in tensors if not same(getattr(args, one), tensors[one])] == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("d", EXAMPLES, ids=lambda d: f"{d.op}-{d.source}-{d.digest()[:4]}")
def test_batches_and_other_sizes_are_converted_exactly(d, device):
    args = inputs.make_args(d, seed=2)
    subject = emulator.subject(d)
    plan = subject.plan if device == "cuda" else Plan.select(d, Preference(backend="reference"), Target.cpu())
    assert plan.workspace_size == 0
    run(device, d, args)
    assert numerics.check(d, args, plan.sku).worst == 0


@pytest.mark.parametrize("name", CASES)
def test_unpacking_restores_the_packed_codes_bit_for_bit(name):
    """The tensors include zero points of 15 for gptq, scales of NaN, and negative words."""
    packs, unpacks = (problem(kind, name) for kind in (PackWeightsDescriptor, UnpackWeightsDescriptor))
    args = inputs.make_args(packs, seed=7)
    kept = {name: t.clone() for name in packs.operands() if name.startswith("stored") for t in [getattr(args, name)]}
    run("reference", packs, args)
    for name in kept:
        getattr(args, name).copy_(torch.zeros(1))
    run("reference", unpacks, args)
    assert all(same(getattr(args, name), kept[name]) for name in kept)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_with_any_strides_are_read_and_written(device):
    """Gate and up are packed into alternate columns of one weight, and scales into a table with groups first; other bytes are
    unchanged.
    """
    d, tensors = problem(PackWeightsDescriptor, "awq"), CASES["awq"][2]
    wide, table = torch.full((2 * N, K // 2 + 3), 77, dtype=torch.uint8), torch.full((4, 2 * N), 7.0, dtype=HALF)
    wider = torch.zeros(K, 2, N // 8, 3, dtype=torch.int32)
    wider[:, 1, :, 2] = tensors["stored_weight"]
    given = {"stored_weight": wider[:, 1, :, 2], "weight": wide[1::2, : K // 2], "weight_scale": table.T[1::2]}
    run(device, d, replace(PackWeightsArgs(**tensors), **given))
    assert torch.equal(wide[1::2, : K // 2], tensors["weight"])
    assert torch.equal(table.T[1::2], tensors["weight_scale"])
    assert set(wide[::2].flatten().tolist()) == set(wide[:, K // 2 :].flatten().tolist()) == {77}
    assert set(table.T[::2].flatten().tolist()) == {7}


FORMULAS = {
    "gptq": lambda: (CODES - spread(ZEROS)) * spread(SCALE.to(HALF)),
    "gptq with activation order": lambda: (CODES - ZEROS[:, ORDER.long()]) * SCALE.to(HALF).double()[:, ORDER.long()],
    "awq": lambda: (CODES - spread(ZEROS)) * spread(SCALE.to(HALF)),
    "compressed_tensors": lambda: (CODES - 8) * spread(SCALE.to(BF16)),
    "compressed_tensors with zero points": lambda: (CODES - spread(ZEROS)) * spread(SCALE.to(HALF)),
    "hqq": lambda: (CODES - spread(FLOATS.to(HALF))) * spread(SCALE.to(HALF)),
    "tinygemm of 8": lambda: (CODES - 8) * spread(SCALE.to(BF16)) + spread(FLOATS.to(BF16)),
    "mxfp4": lambda: torch.tensor(by_hand.E2M1).double()[CODES] * spread(POWERS),
    "nvfp4": lambda: torch.tensor(by_hand.E2M1).double()[CODES] * E4M3.double().repeat_interleave(16, 1),
}


def spread(table):
    return table.double().repeat_interleave(32, 1)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_product_with_the_packed_weight_uses_the_numbers_of_the_library(name):
    """The test multiplies a unit matrix by the weight and compares with the library's formula for the codes."""
    d, tensors = problem(PackWeightsDescriptor, name), CASES[name][2]
    args = emptied(d, tensors)
    run("reference", d, args)
    form = d.weight_format.model_copy(update={"dequantise": "exact"})
    product = MatmulDescriptor(total_num_rows=K, n=N, k=K, dtype="f32", weight_format=form)
    ours = {one: getattr(args, one) for one in tensors if not one.startswith("stored")}
    out = torch.full((K, N), math.nan)
    run("reference", product, MatmulArgs(x=torch.eye(K), out=out, **ours))
    assert torch.equal(out.T, FORMULAS[name]().float())


def test_a_slice_of_a_packed_weight_is_a_view():
    """A shard of k that begins inside a group: gpt-oss has k = 2880 in groups of 32, halves of 1440 in groups of 128."""
    n, k, first = 8, 2880, 1440
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(9))
    scale = torch.rand(n, 23).half()
    weight = Weight(dtype="uint4", group=128, scale_dtype="f16", zero="int")
    zeros = torch.randint(0, 16, (n, 23), generator=torch.Generator().manual_seed(8))
    d = PackWeightsDescriptor(source="gptq", n=n, k=k, weight_format=weight)
    args = inputs.make_args(d, 0)
    args.stored_weight.copy_(by_hand.gptq(codes)), args.stored_zero.copy_(by_hand.gptq_zeros(zeros))
    args.stored_scale.copy_(scale.T)
    run("reference", d, args)
    part = weight.model_copy(update={"group_offset": first % 128})
    product = MatmulDescriptor(total_num_rows=k - first, n=n, k=k - first, dtype="f32", weight_format=part)
    out, group = torch.full((k - first, n), math.nan), first // 128
    views = {"weight": args.weight[:, first // 2 :], "weight_scale": args.weight_scale[:, group:]}
    views["weight_zero"] = args.weight_zero[:, group:]
    Plan.select(product, Preference(backend="reference"), Target.cpu()).run(
        MatmulArgs(x=torch.eye(k - first), out=out, **views)
    )
    of = torch.arange(first, k) // 128
    assert torch.equal(out.T, ((codes[:, first:] - zeros[:, of]) * scale.double()[:, of]).float())


def test_repacking_writes_the_same_addresses_and_replaces_the_old_weight():
    d = problem(PackWeightsDescriptor, "awq")
    plan = Plan.select(d, Preference(backend="reference"), Target.cpu())
    args = emptied(d, CASES["awq"][2])
    where = {name: getattr(args, name).data_ptr() for name in ("weight", "weight_scale", "weight_zero")}
    plan.run(args)
    codes, zeros = drawn(11)
    args.stored_weight.copy_(by_hand.awq(codes)), args.stored_zero.copy_(by_hand.awq(zeros))
    plan.run(args)
    assert torch.equal(args.weight, by_hand.pairs(codes))
    assert torch.equal(args.weight_zero, zeros.to(torch.uint8))
    assert where == {name: getattr(args, name).data_ptr() for name in where}


@pytest.mark.parametrize("source", ["awq", "tinygemm", "hqq"])
def test_packing_several_experts_needs_the_memory_of_one(source):
    """At most two bytes per element are allocated outside of the given tensors at a time, as for one expert of 16 bits."""
    from torch.profiler import ProfilerActivity, profile

    n, k, experts = 256, 512, 8
    weight = Weight(**(INT if source == "awq" else INT | {"zero": "float"} if source == "hqq" else ADDED))
    d = PackWeightsDescriptor(source=source, n=n, k=k, batch=experts, weight_format=weight)
    plan, args = Plan.select(d, Preference(backend="reference"), Target.cpu()), inputs.make_args(d, 0)
    plan.run(args)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        plan.run(args)
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert 0 < most <= 2.1 * n * k


MX4, HQQ = {"dtype": "e2m1", "group": 32, "scale_dtype": "f8_e8m0"}, INT | {"zero": "float"}
REFUSED = {
    "a type that the source has not": ("awq", {"dtype": "int4", "group": 32}, {}, "dtype expected uint4"),
    "no zero points": ("gptq", {"dtype": "uint4", "group": 32}, {}, "zero expected int"),
    "columns that no word holds": ("gptq", INT, {"n": 12}, "n expected a multiple of 8"),
    "elements that no word holds": ("gptq", INT, {"k": 36}, "k expected a multiple of 8"),
    "a slice": ("gptq", INT | {"group_offset": 8}, {}, "group_offset expected 0.*view"),
    "order of awq": ("awq", INT | {"group": None, "num_groups": 2}, {}, "num_groups expected"),
    "groups of mxfp4": ("mxfp4", MX4 | {"group": 16}, {}, "group expected 32"),
    "a partial block of mxfp4": ("mxfp4", MX4, {"k": 40}, "k expected a multiple of 32"),
    "tiles that k does not fill": ("tinygemm", ADDED, {"k": 64}, "multiple of 128"),
    "rows of hqq": ("hqq", HQQ, {"k": 40}, "k expected a multiple of 32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_fields_that_a_source_does_not_support_are_refused(case):
    source, weight, fields, words = REFUSED[case]
    with pytest.raises(DescriptorError, match=words):
        PackWeightsDescriptor(**{"source": source, "n": 16, "k": 64, "weight_format": Weight(**weight), **fields})


@pytest.mark.parametrize("level", ["indices", "full"])
def test_a_group_index_out_of_range_is_refused_before_anything_is_written(level, monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    forget_selections()
    name = "gptq with activation order"
    d = problem(PackWeightsDescriptor, name)
    args = emptied(d, CASES[name][2])
    kept, wrong = args.weight.clone(), ORDER.clone()
    wrong[5] = 4
    with pytest.raises(IndexDataError, match=r"stored_groups\[5\].*expected a value in \[0, 4\)|stored_groups\[5\]"):
        run("reference", d, replace(args, stored_groups=wrong))
    assert torch.equal(args.weight, kept)


WRONG = {
    "stored_scale": (PackWeightsDescriptor, "stored_scale", "finite values other than 0"),
    "weight_scale": (UnpackWeightsDescriptor, "weight_scale", "finite values other than 0"),
    "weight_zero": (UnpackWeightsDescriptor, "weight_zero", "a code of four bits, 0 to 15"),
}


@pytest.mark.parametrize("case", WRONG)
def test_validation_level_full_refuses_zero_scales_and_zero_points_that_lose_bits(case, monkeypatch):
    """The tensors that the op writes may have any content before the call."""
    kind, name, words = WRONG[case]
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    forget_selections()
    d = problem(kind, "awq")
    args = emptied(d, CASES["awq"][2])
    run("reference", d, args)
    wrong = getattr(args, name).clone()
    wrong[0, 1] = 16 if name == "weight_zero" else 0
    with pytest.raises(ArgumentError, match=rf"{name}\[0, 1\].* expected {words}"):
        run("reference", d, replace(args, **{name: wrong}))


def test_a_composed_plan_without_a_workspace_runs():
    """`run` on a GPU also passes no workspace if the size is 0 bytes."""
    d, target = problem(PackWeightsDescriptor, "awq"), Target.cpu()
    maps = composed(PackWeightsDescriptor, "reference", lambda d: (), lambda d: ())
    args = emptied(d, CASES["awq"][2])
    maps.launcher(d, target, None, True)(args, None)
    assert same(args.weight, CASES["awq"][2]["weight"])
