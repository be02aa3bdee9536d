"""Latent decode in the emulator: roles, phases, TMA boxes, weights that overwrite a part of the key, splits and their merge."""

from dataclasses import dataclass

import pytest
import torch

from opfacade import Target
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing import numerics
from opfacade.testing.families.attention import metamorphic, oracle, structural
from opfacade.testing.families.attention.requests import Requests, same_bits
from opfacade.testing.inputs import DrawnLengths
from tests import emulator
from tests.support import assert_guarantee as holding

pytestmark = emulator.needed


@dataclass(frozen=True)
class SmallDevice(emulator.EmulatedSubject):
    """A device with few SMs, so that a CTA processes several requests, or a share of one long request."""

    sms: int = 4

    @property
    def _target(self) -> Target:
        return Target("sm_90a", self.sms, 232448)


def latent(heads=16, page_size=16, batch=2, tokens=700, dtype="bf16", **more):
    cache = PagedLatentCacheDescriptor(num_total_pages=-(-tokens // page_size), page_size=page_size, dtype=dtype)
    return BatchMlaDecodeDescriptor(batch_size=batch, num_qo_heads=heads, paged_kv=cache, **more)


def hold(subject, seed=3, kv=None, interleaved=False):
    assert subject.plan.sku.impl == "latent_tiles"
    return holding.hold(subject, seed, DrawnLengths(kv=kv) if kv else None, interleaved, rows=None)[0]


def hold_growing(subject, kv):
    args = subject.args(8, DrawnLengths(kv=kv))
    for request, length in enumerate(kv):
        at = oracle.token_places(subject.descriptor, args, request)
        args.ckv[at] = args.ckv[at] * torch.linspace(0.1, 12, length)[:, None].to(args.ckv.dtype)
    subject.run(args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku)
    assert report.worst <= 1, report


def hold_all(alone, several):
    assert structural.what_is_unused_does_not_matter(alone, 2) == []
    hold_growing(several, [400, 300, 0, 350, 200])


HEAVY = pytest.mark.heavy
KINDS = [
    pytest.param(latent(24, 1, 4, dtype="f16"), [300, 0, 65, 64], id="odd-heads-pages-of-1"),
    pytest.param(latent(128, 64, 3, kv_split="off"), [129, 1, 0], id="two-head-blocks-pages-of-64"),
    pytest.param(latent(64, 16, 2, 600, page_table="block"), [513, 63], id="pages-of-16-block"),
    pytest.param(
        latent(70, 8, 3, 1500, kv_split=100, window_left=450, logits_soft_cap=8.0, sinks=True), [900, 0, 130],
        id="fixed-split-window-cap-sinks",
    ),
    pytest.param(latent(16, 64, 2, 700, kv_split=40), [300, 41], id="split-that-no-tile-divides", marks=HEAVY),
    pytest.param(latent(16, 100, 3, 900, page_table="block", window_left=70), [500, 71, 128], id="pages-of-100-window"),
    pytest.param(latent(16, 24, 2, return_lse=False, kv_split="off"), [200, 100], id="pages-of-24-no-lse", marks=HEAVY),
    pytest.param(latent(1, 256, 2, 1024), [255, 257], id="one-head-pages-of-256"),
]  # fmt: skip


@pytest.mark.parametrize(("descriptor", "kv"), KINDS)
def test_it_keeps_its_guarantee(descriptor, kv):
    hold(emulator.subject(descriptor), kv=kv)


@pytest.mark.parametrize("sms", [1, pytest.param(2, marks=HEAVY), 5])
@pytest.mark.parametrize("kv", [[64] * 11, [1000, 1, 0, 130], [0, 0, 300, 20, 20, 20, 700]], ids=str)
def test_every_ratio_of_requests_to_ctas_keeps_the_guarantee(sms, kv):
    """The cases have whole requests round-robin, shares that begin and end inside requests, and empty requests
    between others."""
    hold(SmallDevice(latent(16, 16, len(kv), 1300), "cuda", "cpu", sms=sms), kv=kv)


def test_two_head_blocks_have_the_same_split():
    hold(SmallDevice(latent(96, 32, 3, 900), "cuda", "cpu", sms=6), kv=[300, 70, 100])


def test_a_merge_with_more_units_than_one_slice():
    """The first and the last of several hundred units are merged."""
    kv = [150, *[0] * 288, 130]
    hold(emulator.subject(latent(2, 16, len(kv), 700, kv_split=64)), kv=kv)


@pytest.mark.parametrize("kv_split", ["off", 192])
def test_the_base_may_change_at_every_tile(kv_split):
    """Scores grow along the keys: the warpgroups that accumulate use the base that the score warpgroup has found."""
    hold_growing(emulator.subject(latent(16, 16, 2, 1400, kv_split=kv_split)), [700, 640])


@pytest.mark.parametrize("scale", [-0.1, 0.0])
def test_an_unusual_scale_keeps_the_guarantee(scale):
    hold(emulator.subject(latent(sm_scale=scale, allow_unusual_scale=True)), kv=[200, 64])


@pytest.mark.parametrize(
    "descriptor", [latent(batch=3), latent(70, 5, 2, 400, kv_split=64, window_left=100)], ids=["boxes", "threads"]
)
@pytest.mark.parametrize("check", structural.CHECKS, ids=lambda check: check.__name__)
def test_latent_decode_passes_the_exact_checks(descriptor, check):
    assert check(emulator.subject(descriptor), 3) == []


@HEAVY
@pytest.mark.parametrize("check", metamorphic.CHECKS, ids=lambda check: check.__name__)
def test_equivalent_calls_give_the_same_result(check):
    assert check(emulator.subject(latent(batch=3, kv_split=128)), 3) == []


@pytest.mark.parametrize("split", ["off", 64])
def test_a_request_does_not_see_its_batch(split):
    subject = emulator.subject(latent(16, 16, 4, 900, kv_split=split))
    args = subject.args(5, DrawnLengths(kv=[300, 0, 65, 400]))
    subject.run(args)
    for request in range(4):
        descriptor, alone = Requests(subject.descriptor, args).batch([request])
        subject.on(descriptor).run(alone)
        assert same_bits(alone.o[0], args.o[request])
        assert same_bits(alone.lse[0], args.lse[request])


@pytest.mark.parametrize("pad", [1, 8])
def test_rows_with_any_stride_give_the_same_bits(pad):
    """TMA loads rows that are padded by 16 bytes, and threads load rows that are padded by 2 bytes."""
    descriptor = latent(24, 16)
    subject = emulator.subject(descriptor)
    args = subject.args(4)
    subject.run(args)

    def padded(t):
        return torch.empty((*t.shape[:-1], t.shape[-1] + pad), dtype=t.dtype)[..., : t.shape[-1]].copy_(t)

    same = {name: getattr(args, name) for name in ("kv_indptr", "kv_indices", "last_page_len")}
    wide = {name: padded(getattr(args, name)) for name in ("q_nope", "q_pe", "ckv", "kpe", "o")}
    loose = type(args)(lse=torch.empty_like(args.lse), **wide, **same)
    subject.run(loose)
    assert same_bits(loose.o, args.o)
    assert same_bits(loose.lse, args.lse)


@pytest.mark.parametrize("pool", ["ckv", "kpe"])
def test_a_nonfinite_key_changes_only_its_request(pool):
    descriptor = latent(16, 16, 3)
    subject = emulator.subject(descriptor)
    args = subject.args(6, DrawnLengths(kv=[100, 90, 70]))
    subject.run(args)
    want = args.o.clone()
    getattr(args, pool)[int(args.kv_indices[int(args.kv_indptr[1]) + 1]), 3, 5] = float("nan")
    subject.run(args)
    assert same_bits(args.o[[0, 2]], want[[0, 2]])
    assert bool(args.o[1].isnan().any(-1).all())


FAULTS = {
    "what lies past the end is not swept": ("kernels/mla/math.cuh", "if (unseen) zero_invisible(item, start, stage);", ";"),
    "weights are not waited for": (
        "kernels/mla/add.cuh",
        "buffer.wait_full(smem.weights_full);",
        ";",
    ),
    "a base that moved is not followed": ("kernels/mla/add.cuh", "rescale(o);\n", ";\n"),
    "queries are replaced while scores are made of them": (
        "kernels/mla/load.cuh",
        "ring.wait_empty_together(smem.empty);",
        ";",
    ),
    "sums of the item before": ("kernels/mla/add.cuh", "const int slot = queue.ring.stage;", "const int slot = 0;"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_detected(fault):
    """Negative control: each fault is planted in a copy of the sources."""
    name, right, wrong = FAULTS[fault]
    alone = emulator.subject(latent(16, 16, 2, 400, kv_split="off"))
    several = SmallDevice(latent(16, 16, 5, 1500), "cuda", "cpu", sms=1)
    # A fault may also make threads wait for each other forever, which is a RuntimeError.
    with emulator.edited(name, (right, wrong)), pytest.raises((AssertionError, RuntimeError)):
        hold_all(alone, several)
