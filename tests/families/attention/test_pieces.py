"""The split of a decode into pieces: the device code, compiled for the host, agrees with the cost model, and the model splits
every work unit into pieces that CTAs can compute in any order. The emulator runs the CTAs (decode-auto-many)."""

import ctypes
import itertools
import random
from math import hypot

import pytest

from tests.support import decode_splits as model
from tests.support.block_times import drained
from tests.support.host_library import library

HOST = """
#include <algorithm>
#define __device__
#define __forceinline__ inline
using std::max;
using std::min;
#include "kernels/attention/decode/schedule/cut.cuh"
using namespace opfacade;
extern "C" int equal(long long tiles, int batch, int most) { return nearly_equal(tiles, batch, most); }
extern "C" void cut(int batch, int most, int wave, int unit, int* out) {
  const EqualPartition cut = equal_partition(batch, most, wave);
  const RequestPosition place = cut.find(unit);
  out[0] = place.request, out[1] = place.before, out[2] = place.count, out[3] = cut.first_split();
}
extern "C" int count(int tiles, int longest) { return split_count(tiles, longest); }
extern "C" int class_of(int tiles, int count, int longest) { return split_class(tiles, count, longest); }
extern "C" int at_once(long long tiles, int resident) { return longest_concurrent_split(tiles, resident); }
extern "C" int in_turn(int longest) { return longest_queued_split(longest); }
extern "C" int start(int tiles, int count, int i) { return split_start(tiles, count, i); }
"""


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    found = library(tmp_path_factory.mktemp("pieces"), HOST)
    found.equal.argtypes = [ctypes.c_longlong, ctypes.c_int, ctypes.c_int]
    found.at_once.argtypes = [ctypes.c_longlong, ctypes.c_int]
    return found


def drawn(seed):
    """(tiles of each work unit, head blocks, resident CTAs)."""
    rng = random.Random(seed)
    batch, heads = rng.choice([1, 2, 5, 33, 36, 64, 200]), rng.choice([1, 3, 8])
    resident = rng.choice([1, 7, 132, 264])
    kind = rng.choice(["equal", "near", "mixed", "one long", "short", "just longer"])
    if kind in ("equal", "near"):
        most = rng.randint(1, 600)
        return [most - (rng.randint(0, most // 20) if kind == "near" else 0) for _ in range(batch)], heads, resident
    if kind == "one long":
        return [rng.choice([1, 16])] * (batch - 1) + [1024], heads, resident
    # units that are just long enough for one or two more pieces, so that the number of parts is as large as possible
    if kind == "just longer":
        split = rng.randint(3, 40)
        return [rng.choice([1, split + 1, 2 * split + 1]) for _ in range(batch)], heads, resident
    return [rng.randint(1, 3 if kind == "short" else 400) for _ in range(batch)], heads, resident


SEEDS = range(150)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_device_splits_units_as_the_model_does(device, seed):
    counts, heads, resident = drawn(seed)
    splits, wave = model.splits(counts, heads, resident), max(1, resident // heads)
    runs = {split.request: split.parts for split in splits}
    before = dict(zip(runs, itertools.accumulate([0, *runs.values()]), strict=False))
    if device.equal(sum(counts), len(counts), max(counts)):
        for unit, split in enumerate(splits):
            out = (ctypes.c_int * 4)()
            device.cut(len(counts), max(counts), wave, unit, out)
            assert tuple(out[:3]) == (split.request, before[split.request], split.parts)
            assert out[3] == next((unit for unit, split in enumerate(splits) if split.parts > 1), out[3])
        device.cut(len(counts), max(counts), wave, len(splits), out)
        assert out[0] >= len(counts)  # nothing is written after the last split
    else:
        longest = device.at_once(sum(counts) * heads, resident)
        if heads * sum(device.count(n, longest) for n in counts) > resident:
            longest = device.in_turn(longest)
        assert runs == {request: device.count(n, longest) for request, n in enumerate(counts)}
        classes = [device.class_of(counts[split.request], split.parts, longest) for split in splits]
        assert classes == sorted(classes)
        assert all(split.end - split.first <= longest for split in splits)
    for split in splits:
        for i, grain in ((split.part, split.first), (split.part + 1, split.end)):
            assert device.start(counts[split.request], split.parts, i) == grain


@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_cover_every_unit_once_and_partials_of_split_units_have_separate_slots(seed):
    counts, heads, resident = drawn(seed)
    splits = model.splits(counts, heads, resident)
    for request, count in enumerate(counts):
        own = sorted(split for split in splits if split.request == request)
        assert [split.part for split in own] == list(range(own[0].parts))
        assert (own[0].first, own[-1].end) == (0, count)
        assert all(a.end == b.first for a, b in itertools.pairwise(own))
    cut = [unit for unit, split in enumerate(splits) if split.parts > 1]
    if cut:
        # If the lengths are nearly equal, slots are numbered from the first split unit, otherwise from the first unit.
        first = cut[0] if 8 * sum(counts) >= 7 * len(counts) * max(counts) else 0
        assert (cut[-1] - first + 1) * heads <= 3 * resident
    assert len(splits) * heads <= len(counts) * heads + 3 * resident // 2


def waste(counts, heads=8, resident=264):
    """The time of a partition in the cost model, relative to the time with all CTAs busy until the end. 103 CTAs already
    saturate the memory bandwidth."""
    sizes = [float(split.end - split.first) for split in model.splits(counts, heads, resident) for _ in range(heads)]
    return drained(sizes, resident, 1.0, 103.0) / (sum(sizes) / resident * hypot(1, resident / 103))


@pytest.mark.parametrize(
    ("batches", "most"), [((1, 2, 3, 8, 16, 32, 33, 36, 40, 44, 48, 64, 70, 128), 1.01), ((5, 10), 1.03), ((12, 20, 24), 1.12)]
)
def test_units_of_equal_length_nearly_saturate_the_memory_bandwidth(batches, most):
    """The waste is largest if the pieces do not fill a wave, as for 12, 20 and 24 requests."""
    assert all(waste([128] * batch) <= most for batch in batches)


def test_units_of_mixed_lengths_nearly_saturate_the_memory_bandwidth():
    rng = random.Random(1)
    for batch, most in ((16, 1.13), (32, 1.09), (64, 1.05), (128, 1.05), (256, 1.05)):
        for _ in range(6):
            assert waste([max(1, int(rng.paretovariate(1.1) * 6)) for _ in range(batch)]) <= most, batch


def test_one_long_unit_is_split_into_enough_pieces_for_all_ctas():
    splits = model.splits([1024] + [16] * 63, 8, 264)
    assert splits[0].request == 0  # the long unit is first
    assert 12 <= splits[0].parts <= 30
    assert all(split.parts == 1 for split in splits if split.request)
