"""The reference latent attention against a float64 loop that shares no code with it, and what its descriptor refuses."""

import math
import random
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target, explain
from opfacade.errors import DescriptorError, IndexDataError, UnsupportedError
from opfacade.plans.mla import BatchMlaDecodeDescriptor, BatchMlaDecodePlan, PagedLatentCacheDescriptor
from opfacade.testing import determinism, numerics
from opfacade.testing.batches import changed
from opfacade.testing.inputs import DrawnLengths
from opfacade.testing.subject import Subject
from opfacade.tools.amount import amount
from tests.support import naive_attention as naive
from tests.support.problems import bits, cloned, i32, mla, on_reference, poison, run

WIDE = PagedLatentCacheDescriptor(num_total_pages=8, page_size=4, dtype="bf16")


def test_an_error_about_o_names_latent_dim():
    descriptor, args = mla([6, 9])
    [issue] = on_reference(descriptor).can_implement(replace(args, o=args.o[..., 1:])).issues
    assert issue.expected.endswith(f"latent_dim={descriptor.paged_kv.latent_dim}]")


def assert_right(problem):
    descriptor, args = run(problem)
    o, lse = naive.mla(descriptor, args)
    arithmetic = 1e-14 if args.o.dtype == torch.float32 else 8e-6
    naive.assert_rounded(args.o, o, magnitude=4.0, arithmetic=arithmetic)
    if args.lse is not None:
        naive.assert_rounded(args.lse, lse, magnitude=8.0, arithmetic=arithmetic)


@pytest.mark.parametrize("seed", range(24))
def test_a_random_latent_decode_equals_the_loop(seed):
    rng = random.Random(seed)
    pool = PagedLatentCacheDescriptor(
        num_total_pages=60, page_size=rng.choice([1, 3, 4]), dtype=rng.choice(["f16", "bf16", "f32", "f8_e4m3"]),
        latent_dim=rng.choice([8, 16]), rope_dim=rng.choice([1, 8]),
    )  # fmt: skip
    kv_lens = [rng.choice([0, 1, rng.randint(1, 17)]) for _ in range(rng.randint(1, 4))]
    fields = {"window_left": rng.choice([-1, -1, 0, 5]), "logits_soft_cap": rng.choice([0.0, 1.5]), "sinks": rng.random() < 0.4}
    fields |= {"q_dtype": rng.choice([None, "bf16", "f32"]), "return_lse": rng.random() < 0.8}
    form = rng.choice(["csr", "block"])
    assert_right(mla(kv_lens, pool=pool, page_table=form, heads=rng.choice([1, 3, 16]), seed=seed, **fields))


@pytest.mark.parametrize("seed", range(12))
def test_a_random_latent_decode_of_several_rows_equals_the_loop(seed):
    rng = random.Random(seed)
    kv_lens = [rng.choice([0, 1, 2, rng.randint(1, 17)]) for _ in range(rng.randint(1, 4))]
    fields = {"window_left": rng.choice([-1, -1, 0, 5]), "logits_soft_cap": rng.choice([0.0, 1.5]), "sinks": rng.random() < 0.4}
    fields |= {"q_len": rng.choice([2, 3, 5]), "causal": rng.random() < 0.8, "return_lse": rng.random() < 0.8}
    assert_right(mla(kv_lens, page_table=rng.choice(["csr", "block"]), heads=rng.choice([1, 3, 16]), seed=seed, **fields))


@pytest.mark.parametrize("causal", [True, False])
def test_each_row_of_a_request_equals_a_call_with_one_row(causal):
    """Row i of 3 attends to the first kv_len - 2 + i keys if causal, otherwise to all keys, as a decode of that length does."""
    descriptor, args = run(mla([9, 2, 0], page_table="block", seed=5, q_len=3, causal=causal))
    for i in range(3):
        lens = args.kv_lens - (2 - i if causal else 0)
        one, rows = changed(descriptor, q_len=1), slice(i, None, 3)
        outputs = {"o": poison(3, 5, 16), "lse": poison(3, 5, dtype="f32")}
        own = replace(args, q_nope=args.q_nope[rows], q_pe=args.q_pe[rows], kv_lens=lens.clamp(min=0), **outputs)
        run((one, own))
        torch.testing.assert_close(
            own.o, args.o[rows], rtol=2**-10, atol=1e-6
        )  # another product of matrices may round otherwise
        torch.testing.assert_close(own.lse, args.lse[rows], rtol=1e-6, atol=0)


def test_q_len_and_causal_are_not_serialised_for_one_row():
    """Serialised descriptors, digests and ids of an earlier version stay valid."""
    descriptor, _ = mla([6])
    assert not {"q_len", "causal"} & set(descriptor.model_dump())
    assert {"q_len": 4, "causal": False}.items() <= changed(descriptor, q_len=4, causal=False).model_dump().items()


@pytest.mark.parametrize(
    ("q_len", "text"), [(0, "greater than or equal to 1"), (2**30, r"q_len expected at most 2\^31 - 1 rows")]
)
def test_an_invalid_q_len_is_refused(q_len, text):
    with pytest.raises(DescriptorError, match=text):
        mla([1, 1, 1])[0].model_validate(mla([1, 1, 1])[0].model_dump() | {"q_len": q_len})


@pytest.mark.parametrize("rows", [2, 7])
def test_a_number_of_rows_other_than_q_len_per_request_is_refused(rows):
    descriptor, args = mla([6, 9], q_len=3)
    wrong = replace(args, q_nope=torch.zeros(rows, 5, 16, dtype=torch.float16))
    [issue] = on_reference(descriptor).can_implement(wrong).issues
    assert (issue.argument, "batch_size*q_len=6" in str(issue)) == ("q_nope", True)


def test_pages_before_the_window_of_the_first_row_may_have_any_id():
    descriptor, args = mla([16], q_len=3, window_left=4, page_table="block")  # row 0 at position 13 sees keys from 9 on
    args.block_table[0, :2] = -1
    run((descriptor, args))
    args.block_table[0, 2] = -1
    with pytest.raises(IndexDataError, match=r"block_table\[0, 2\]"):
        run((descriptor, args))


def test_the_default_scale_is_that_of_a_head_before_absorption():
    descriptor, args = mla([6, 9], pool=WIDE, heads=16, sm_scale=None)
    assert descriptor.scale == 1 / math.sqrt(128 + 64)
    assert_right((descriptor, args))


def test_other_latent_dims_require_an_explicit_scale():
    with pytest.raises(
        DescriptorError, match=r"sm_scale expected a number.*512 \+ 64, not \(16, 8\), got None. Usually it is 1/sqrt"
    ):
        mla([6], sm_scale=None)


def test_ckv_and_kpe_in_one_tensor_give_the_same_bits():
    """Servers use one [pages, page_size, 576] tensor or two tensors; base pointers and strides describe both."""
    _, apart = run(mla([6, 0, 9], seed=3))
    _, together = run(mla([6, 0, 9], seed=3, columns=True))
    assert together.ckv.stride(1) > together.ckv.shape[-1]
    assert together.kpe.data_ptr() - together.ckv.data_ptr() == together.ckv.shape[-1] * 2
    assert torch.equal(bits(apart.o), bits(together.o))
    assert torch.equal(bits(apart.lse), bits(together.lse))


def test_with_a_single_key_the_output_is_its_latent_row():
    descriptor, args = mla([1])
    run((descriptor, args))
    [[(page, slot)]] = naive.locations(args, 4)
    assert torch.equal(args.o[0], args.ckv[page, slot].expand_as(args.o[0]))


def test_a_request_without_keys_has_o_zero_and_lse_minus_infinity():
    _, args = run(mla([0, 3]))
    assert (args.o[0] == 0).all()
    assert (args.lse[0] == -torch.inf).all()


def test_a_nonfinite_rotated_key_changes_only_its_request():
    descriptor, args = mla([6, 5])
    nonfinite = cloned(args)
    page, slot = naive.locations(args, 4)[0][2]
    nonfinite.kpe[page, slot, 0] = torch.nan
    run((descriptor, args)), run((descriptor, nonfinite))
    assert torch.isnan(nonfinite.o[0]).all()
    assert torch.equal(bits(nonfinite.o[1]), bits(args.o[1]))


def test_a_page_outside_the_pool_is_refused():
    descriptor, args = mla([6, 9])
    args.kv_indices[1] = 24
    with pytest.raises(IndexDataError, match=r"\[0, 24\).*got 24"):
        run((descriptor, args))
    assert torch.isnan(args.o).all()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"q_pe": torch.zeros(2, 5, 16, dtype=torch.float16)}, "OPF-A011"),
        ({"kpe": torch.zeros(24, 4, 8, dtype=torch.bfloat16)}, "OPF-A010"),
        ({"ckv": torch.zeros(24, 4, 32, dtype=torch.float16)[..., ::2]}, "OPF-A021"),
        ({"kv_indptr": torch.zeros(3, dtype=torch.int64)}, "OPF-A010"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else x,
)
def test_an_operand_of_a_wrong_shape_or_dtype_is_refused(change, code):
    descriptor, args = mla([6, 9])
    [issue] = on_reference(descriptor).can_implement(replace(args, **change)).issues
    assert (issue.code, issue.argument) == (code, next(iter(change)))


@pytest.mark.parametrize("name", ["q_nope", "kpe"])
def test_validation_level_full_checks_q_and_both_parts_of_the_cache(monkeypatch, name):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor, args = mla([6, 9], seed=8, logits_soft_cap=7.0)
    page, slot = naive.locations(args, 4)[1][8]
    getattr(args, name)[(1, 2) if name == "q_nope" else (page, slot)] = torch.inf
    with pytest.raises(ValueError, match=rf"{name}\[.*finite"):
        run((descriptor, args))


def test_the_named_plan_selects_the_sku_of_plan_select():
    descriptor, args = mla([6, 9])
    plan = BatchMlaDecodePlan.select(descriptor, target=Target.cpu())
    plan.run(args)
    assert plan.sku.id.startswith("attention/mla_decode/reference/cpu/torch@1/kv=f16,o=f16,q=f16/strided/lse_base=e/")
    assert Plan.select(descriptor, target=Target.cpu()).sku == plan.sku


def test_the_cuda_kernel_is_selected_or_declines_with_reasons():
    descriptor = BatchMlaDecodeDescriptor(batch_size=4, num_qo_heads=128, paged_kv=WIDE)
    options = {o.candidate.backend: o for o in explain(descriptor, target=Target.parse("sm_90a")).options}
    assert not options["reference"].reasons
    if options["cuda"].reasons:
        with pytest.raises(UnsupportedError, match="mla_decode"):
            Plan.select(descriptor, Preference(backend="cuda"), Target.parse("sm_90a"))
    old = {o.candidate.backend: o for o in explain(descriptor, target=Target.parse("sm_75")).options}
    assert "OPF-S001" in {reason.code for reason in old["cuda"].reasons}


def test_the_cost_counts_the_bytes_of_a_latent_row_once():
    descriptor = BatchMlaDecodeDescriptor(batch_size=2, num_qo_heads=16, paged_kv=WIDE, kv_split="off")
    short, long = (amount(descriptor, DrawnLengths(kv=[n, 0])) for n in (4, 24))
    assert long.bytes - short.bytes == 20 * 576 * 2
    assert long.flops - short.flops == 20 * 16 * 2 * (576 + 512)


def forget_the_rotated_part(args):
    args.q_pe.zero_()


def take_the_key_of_the_next_token(args):
    args.kpe.copy_(args.kpe.roll(1, dims=1).nan_to_num(0.0))


def swap_two_rows(args):
    args.q_nope[:2], args.q_pe[:2] = args.q_nope[:2].flip(0), args.q_pe[:2].flip(0)


def take_the_table_of_the_next_request(args):
    args.block_table.copy_(args.block_table.flip(0))


def see_one_key_less(args):
    args.kv_lens.sub_(1)


def take_a_wrong_page(args):
    args.block_table[0, 0] = args.block_table[0, 1]


@pytest.mark.parametrize("fault", [forget_the_rotated_part, take_the_key_of_the_next_token, take_a_wrong_page])
def test_the_error_check_detects_each_fault(fault):
    assert_seen(fault, [14, 9])


@pytest.mark.parametrize("fault", [swap_two_rows, take_the_table_of_the_next_request, see_one_key_less])
def test_the_error_check_detects_each_fault_of_several_rows(fault):
    assert_seen(fault, [14, 13], q_len=3)


def assert_seen(fault, kv_lens, **fields):
    descriptor, args = mla(kv_lens, pool=WIDE, heads=16, page_table="block", **fields)
    plan, wrong = on_reference(descriptor), cloned(args)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku).worst <= 1
    fault(wrong)
    plan.run(wrong)
    assert numerics.check(descriptor, replace(args, o=wrong.o, lse=wrong.lse), plan.sku).worst > 1


@pytest.mark.parametrize("kv_split", ["auto", 64])
def test_the_determinism_harness_runs_latent_attention(kv_split):
    descriptor = BatchMlaDecodeDescriptor(batch_size=3, num_qo_heads=16, paged_kv=WIDE, kv_split=kv_split)
    subject = Subject(descriptor, "reference", "cpu")
    assert determinism.run_to_run(subject, runs=3, seed=1).different == 0
    few = determinism.Campaign(needles=3, compositions=2, largest=4, longest=40)
    assert determinism.batch_invariance(subject, few, seed=1).compared >= 6


def test_a_length_beyond_the_block_table_is_refused():
    descriptor, args = mla([6, 9], page_table="block")
    with pytest.raises(IndexDataError, match=r"kv_lens\[1\]"):
        run((descriptor, replace(args, kv_lens=i32([6, 99]))))
