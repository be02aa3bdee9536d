"""The emulated kernel that lists the first tokens of a shard: adjusted logits and columns equal those of a sort in f64."""

import math

import pytest
import torch
import tvm_ffi

from opfacade.backends.cuda.collective import sample_across
from opfacade.backends.reference import _sample_across as in_torch
from opfacade.core.target import Target
from opfacade.plans.collective import SampleAcrossArgs, SampleAcrossDescriptor
from tests import emulator

pytestmark = emulator.needed
TARGET = Target.parse("sm_90a")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LARGEST = 2.0**127


def descriptor(rows, shard, vocab=None, **fields):
    fields = {"top_k": True, "max_top_k": 40, "top_p": True} | fields
    return SampleAcrossDescriptor(world=1, total_num_rows=rows, vocab=vocab or shard, shard=shard, **fields)


def listed(d, logits, temperature=None, num_valid=None):
    """The values and columns of the kernel's lists; elements that the kernel does not write are 77."""
    module, held = tvm_ffi.load_module(str(emulator.library_of(sample_across.list_spec(d, TARGET)))), []
    own = torch.full((2, d.total_num_rows, d.listed), 77.0)
    args = SampleAcrossArgs(
        logits=logits, temperature=temperature, num_valid=num_valid, seed=None, offset=None, token=None, valid=None
    )
    words = sample_across.list_arguments(d, args, own, min(d.vocab, d.shard), TARGET)
    module.run(*[emulator.cuda_view(one, held) if isinstance(one, torch.Tensor) else one for one in words])
    return own[0], own[1].view(torch.int32)


def by_hand(row, k, temperature=1.0):
    """(value, column) of the first k tokens of a row, larger values and then lower columns first. The division by the
    temperature is rounded to f32 once."""
    found = []
    for column, logit in enumerate(row.double().tolist()):
        if math.isnan(logit) or logit == -math.inf:
            continue
        value = max(-LARGEST, min(LARGEST, logit))
        if temperature > 0:
            value = max(-LARGEST, min(LARGEST, (torch.tensor(value).float() / torch.tensor(temperature).float()).item()))
        found.append((-value, column))
    return [(-value, column) for value, column in sorted(found)[:k]]


def hold(d, logits, got, temperature=None):
    for i in range(d.total_num_rows):
        heat = 1.0 if temperature is None else temperature[i].item()
        right = by_hand(logits[i, : min(d.vocab, d.shard)], d.listed, heat)
        values, columns = got[0][i].tolist(), got[1][i].tolist()
        assert values[: len(right)] == [value for value, _ in right], i
        assert columns[: len(right)] == [column for _, column in right], i
        assert values[len(right) :] == [-math.inf] * (d.listed - len(right)), i


def drawn(rows, columns, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=g) * 3).to(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shard", [1003, 20000])
def test_lists_equal_those_of_a_sort(dtype, shard):
    d = descriptor(5, shard, dtype=dtype, temperature=False)
    logits = drawn(5, shard, dtype)
    hold(d, logits, listed(d, logits))


@pytest.mark.parametrize("k", [1, 7, 128])
def test_logits_are_divided_by_the_temperature_and_zero_is_greedy(k):
    d = descriptor(4, 9000, max_top_k=k)
    logits, temperature = drawn(4, 9000, "f32", 1), torch.tensor([0.7, 0.0, 3.0, 1e-30])
    hold(d, logits, listed(d, logits, temperature), temperature)


def test_nan_infinities_and_padding_are_listed_correctly():
    """The padding of the last shard is larger than all logits and must not be listed."""
    d = descriptor(6, 1003, 1000, temperature=False)
    logits = drawn(6, 1003, "f32", 2)
    logits[:, 1000:] = 99.0
    logits[0], logits[1, 5:], logits[2, ::3], logits[3, 7] = math.nan, -math.inf, math.nan, math.inf
    logits[4, :1000], logits[5, 4] = -0.0, -0.0
    got = listed(d, logits)
    hold(d, logits, got)
    assert not torch.signbit(got[0][4]).any()


@pytest.mark.parametrize("equal", [600, 20000])
def test_rows_with_more_ties_than_the_list_has_entries(equal):
    """The kernel lists rows with many ties one token after another; the other rows of the cluster keep their lists."""
    d = descriptor(9, 20000, temperature=False)
    logits = drawn(9, 20000, "f32", 3)
    for i in (1, 2, 8):
        logits[i, torch.randperm(20000, generator=torch.Generator().manual_seed(i))[:equal]] = 50.0
    logits[8, 19000:19003] = 51.0
    hold(d, logits, listed(d, logits))


def test_a_row_of_equal_logits_is_listed_at_any_temperature():
    d = descriptor(2, 20000)
    logits, temperature = torch.full((2, 20000), 3.0), torch.tensor([0.7, 0.0])
    hold(d, logits, listed(d, logits, temperature), temperature)


def test_rows_with_a_stride_and_any_alignment_are_listed():
    d = descriptor(3, 8197, dtype="bf16", temperature=False)
    logits = drawn(3, 9001, "bf16", 4)[:, 3 : 3 + 8197]
    hold(d, logits, listed(d, logits))


def test_rows_past_num_valid_are_not_written():
    d = descriptor(5, 1003, temperature=False, num_valid=True)
    logits = drawn(5, 1003, "f32", 5)
    values, _ = listed(d, logits, num_valid=torch.tensor([2], dtype=torch.int32))
    assert (values[2:] == 77).all()
    assert (values[:2] != 77).all()


def test_a_row_has_its_bits_in_any_batch():
    logits = drawn(33, 9000, "f32", 6)
    whole = listed(descriptor(33, 9000, temperature=False), logits)
    for i in (0, 17, 32):
        alone = listed(descriptor(1, 9000, temperature=False), logits[i : i + 1])
        assert all(torch.equal(a[0], b[i]) for a, b in zip(alone, whole, strict=True))


def test_the_draw_by_torch_from_these_lists_gives_the_same_tokens():
    d = descriptor(6, 1003, 1000)
    logits = drawn(6, 1003, "f32", 7)
    logits[4] = (logits[4] * 4).round() / 4  # this row has many ties
    heat, found = torch.tensor([0.7] * 5 + [0.0]), []

    def lists(d, args):
        values, columns = listed(d, args.logits.contiguous(), args.temperature)
        return values, columns.long()

    for by in (None, lists):
        token, valid = torch.zeros(6, dtype=torch.int32), torch.zeros(6, dtype=torch.uint8)
        args = SampleAcrossArgs(
            logits=logits, seed=torch.arange(6), offset=torch.arange(6), temperature=heat, token=token, valid=valid,
            top_k=torch.full((6,), 40, dtype=torch.int32), top_p=torch.full((6,), 0.9),
        )  # fmt: skip
        in_torch.sample_across(d, args, by)
        found.append([token.tolist(), valid.tolist()])
    assert found[0] == found[1]


class Emulated:
    """An emulator module in place of a compiled one: host tensors are passed as GPU tensors."""

    def __init__(self, spec):
        self.module = tvm_ffi.load_module(str(emulator.library_of(spec)))

    def run(self, *words):
        held = []
        self.module.run(*[emulator.cuda_view(one, held) if isinstance(one, torch.Tensor) else one for one in words])


@pytest.fixture
def _by_emulator(monkeypatch):
    """Kernels run in the emulator; uninitialised memory contains NaN, whose bits are not a valid column."""
    monkeypatch.setattr(sample_across.sum_fold, "module_of", lambda spec, allow_build, label: Emulated(spec))
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_by_emulator")
def test_columns_of_rows_past_num_valid_are_in_the_shard():
    """On a GPU, torch looks up the columns of all rows, including those that it does not store."""
    d = descriptor(5, 1003, temperature=False, num_valid=True)
    args = SampleAcrossArgs(
        logits=drawn(5, 1003, "f32", 8), num_valid=torch.tensor([2], dtype=torch.int32), seed=None, offset=None, token=None,
        valid=None,
    )  # fmt: skip
    _, columns = sample_across.lists(d, TARGET, True, "")(d, args)
    assert ((columns >= 0) & (columns < 1003)).all()


class Rank:
    def __init__(self, rank):
        self.rank = rank


@pytest.mark.usefixtures("_by_emulator")
def test_a_rank_lists_its_own_tokens_and_no_padding():
    d = SampleAcrossDescriptor(
        world=3, total_num_rows=4, vocab=2500, shard=900, top_k=True, max_top_k=20, top_p=True, temperature=False
    )
    whole, sent = drawn(4, 2500, "f32", 9), []
    run = sample_across.drawer(d, TARGET, True, "", lambda d, args, own: sent.append(own) or [own] * 3)
    for rank in range(3):
        logits = torch.full((4, 900), 99.0)  # the padding is larger than all logits
        part = whole[:, rank * 900 : (rank + 1) * 900]
        logits[:, : part.shape[1]] = part
        run(d, SampleAcrossArgs(
            logits=logits, group=Rank(rank), seed=torch.arange(4), offset=torch.arange(4), top_p=torch.full((4,), 0.9),
            top_k=torch.full((4,), 20, dtype=torch.int32), token=torch.zeros(4, dtype=torch.int32),
            valid=torch.zeros(4, dtype=torch.uint8),
        ))  # fmt: skip
        for i in range(4):
            right = by_hand(part[i], 20)
            assert sent[rank][0, i].tolist() == [value for value, _ in right]
            assert sent[rank][1, i].view(torch.int32).tolist() == [column for _, column in right]
