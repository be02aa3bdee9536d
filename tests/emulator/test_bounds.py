"""Lengths that exceed the grids and workspaces: no row is left unwritten, stale or half computed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing.families.attention.requests import Requests, same_bits
from opfacade.testing.inputs import DrawnLengths
from tests import emulator
from tests.support.assert_guarantee import hold

pytestmark = emulator.needed

HEAVY = pytest.mark.heavy
SIX = (12, [96, 90, 96, 81, 96, 96])  # six requests of six pages, in a pool of twelve pages
MANY = (260, [2080 - 7 * (i % 5) for i in range(64)])  # 64 requests of 130 pages, in a pool of 260 pages
FEWER = (260, MANY[1][:24])  # a CTA then computes few enough chunks for the emulator


def decode(pages, lengths, dtype="bf16", dim=64, heads=2, **more):
    cache = PagedKvCacheDescriptor(
        num_total_pages=pages, page_size=16, num_kv_heads=heads, head_dim=dim, dtype=dtype, layout="HND"
    )
    q_dtype = "f16" if dtype.startswith("f8") else None
    return BatchPagedDecodeDescriptor(batch_size=len(lengths), num_qo_heads=4 * heads, paged_kv=cache, q_dtype=q_dtype, **more)


def latent(pages, lengths, heads=16, **more):
    cache = PagedLatentCacheDescriptor(num_total_pages=pages, page_size=16, dtype="bf16")
    return BatchMlaDecodeDescriptor(batch_size=len(lengths), num_qo_heads=heads, paged_kv=cache, **more)


def prefill(pages, lengths, **more):
    cache = PagedKvCacheDescriptor(num_total_pages=pages, page_size=16, num_kv_heads=1, head_dim=64, dtype="bf16", layout="HND")
    rows = 3 * len(lengths)
    return BatchPagedPrefillDescriptor(
        batch_size=len(lengths), total_num_rows=rows, num_qo_heads=2, causal=True, paged_kv=cache, **more
    )


def hold_and_compare(subject, lengths):
    """Asserts the error bound, and that each request has the bits that it has alone, in a plan with its own bounds."""
    args, _ = hold(subject, 3, lengths)
    requests = Requests(subject.descriptor, args)
    for request in {0, subject.descriptor.batch_size - 1}:
        descriptor, alone = requests.batch([request])
        subject.on(descriptor).run(alone)
        rows = slice(requests.first[request], requests.first[request + 1])
        assert same_bits(alone.o, args.o[rows])
        assert same_bits(alone.lse, args.lse[rows])


SHARED = [
    *(pytest.param(decode(*SIX, kv_split=chunk), SIX[1], id=f"six-{chunk}") for chunk in (32, 64, 256)),
    pytest.param(decode(*SIX, kv_split=32, page_table="block", window_left=50), SIX[1], id="six-window-block"),
    pytest.param(decode(*SIX, dtype="f32", kv_split=32), SIX[1], id="six-f32"),
    pytest.param(decode(*SIX, dtype="f8_e4m3", dim=128, kv_split=32, sinks=True), SIX[1], id="six-fp8-sinks"),
    pytest.param(decode(*SIX, dim=256, heads=1, kv_split=32), SIX[1], id="six-d256", marks=HEAVY),
    *(pytest.param(latent(*SIX, kv_split=chunk), SIX[1], id=f"latent-six-{chunk}") for chunk in (32, 64, 256)),
    pytest.param(latent(*SIX, heads=96, kv_split=32, sinks=True), SIX[1], id="latent-six-two-head-blocks"),
    *(pytest.param(prefill(*SIX, kv_split=chunk), SIX[1], id=f"prefill-six-{chunk}") for chunk in (32, 64, 256)),
    pytest.param(decode(*MANY, heads=1, kv_split=256), MANY[1], id="many-256"),
    *(pytest.param(decode(*MANY, heads=1, kv_split=chunk), MANY[1], id=f"many-{chunk}", marks=HEAVY) for chunk in (32, 64)),
    *(pytest.param(latent(*MANY, kv_split=chunk), MANY[1], id=f"latent-many-{chunk}", marks=HEAVY) for chunk in (64, 256)),
    pytest.param(latent(*FEWER, kv_split=32), FEWER[1], id="latent-fewer-32", marks=HEAVY),
]  # fmt: skip


@pytest.mark.parametrize(("descriptor", "kv"), SHARED)
def test_requests_that_share_pages_have_their_results_and_their_bits(descriptor, kv):
    hold_and_compare(emulator.subject(descriptor), DrawnLengths(q=None if "decode" in descriptor.op else [3] * len(kv), kv=kv))


LONG = [300, 130, 0, 290]
BEYOND = {  # quantities of a call that exceed the plan's bounds
    "pages of all requests": {"max_kv_indices": 5},
    "tokens of one request": {"max_kv_len": 70},
    "pages of one request, which are repeated": {"pages": 9},
}
MAKERS = (decode, latent, prefill)
WAYS = ("auto", "off", 32, 256)


def in_turn():
    """Each kind of kernel with each exceeded bound, with one split mode in turn; the other split modes are heavy tests."""
    for turn, (make, beyond) in enumerate((make, beyond) for make in MAKERS for beyond in BEYOND):
        for number, split in enumerate(WAYS):
            name = f"{make.__name__}-{beyond}-{split}"
            yield pytest.param(make, beyond, split, id=name, marks=() if number == turn % len(WAYS) else HEAVY)


@pytest.mark.parametrize(("make", "beyond", "split"), list(in_turn()))
def test_a_call_beyond_its_bounds_is_right(make, beyond, split):
    """The validation levels indices and full refuse the call; without validation, a kernel still computes a complete result."""
    fields = dict(BEYOND[beyond])
    subject = emulator.subject(make(fields.pop("pages", 60), LONG, kv_split=split, **fields))
    hold(subject, 5, DrawnLengths(q=[3] * 4 if make is prefill else None, kv=LONG))


@pytest.mark.parametrize("split", ["auto", 32])
def test_a_prefill_with_mma_tiles_that_exceeds_the_bounds_is_right(split):
    subject = emulator.subject(prefill(60, LONG, kv_split=split, max_kv_len=70), arch="sm_90")
    assert subject.plan.sku.impl == "mma_tile"
    hold(subject, 5, DrawnLengths(q=[3] * 4, kv=LONG))


def test_a_unit_with_more_parts_than_a_counter_can_count_is_right():
    """Each of ten parts has a slot. A counter of three bits and ten parts stand for a counter of sixteen bits and
    65536 parts."""
    kv = [160, 16, 16, 1]
    with emulator.edited("kernels/attention/decode/schedule/cut.cuh", ("kCountBits = 16;", "kCountBits = 3;")):
        hold(emulator.subject(decode(30, kv, kv_split=16)), 2, DrawnLengths(kv=kv))


KINDS = [
    pytest.param(decode, "auto", id="decode-auto"),
    pytest.param(decode, 64, id="decode-64"),
    pytest.param(latent, "auto", id="latent-auto"),
    pytest.param(latent, 64, id="latent-64"),
    pytest.param(prefill, "auto", id="prefill-auto"),
    pytest.param(prefill, 64, id="prefill-64"),
]


@pytest.mark.parametrize(("make", "split"), KINDS)
@settings(max_examples=3, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_length_that_exceeds_a_bound_is_reported(make, split, data):
    kv = data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=7), label="kv")
    pages = data.draw(st.integers(1, 30), label="pages")
    bounds = data.draw(st.sampled_from([{}, {"max_kv_indices": 3}, {"max_kv_len": 40}, {"max_kv_len": 0}]), label="bounds")
    subject = emulator.subject(make(pages, kv, kv_split=split, **bounds))
    hold(subject, 7, DrawnLengths(q=[3] * len(kv) if make is prefill else None, kv=kv))
