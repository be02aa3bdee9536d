"""bench/one_row.py compares the same requests, and the page quotes its record."""

import json
from pathlib import Path

from bench import decode as decode_bench
from bench import one_row
from opfacade import Plan, Target

ROOT = Path(__file__).resolve().parents[2]


def test_the_contenders_read_the_same_cache():
    for shape in one_row.SHAPES:
        decode, rows, biased = one_row.descriptors(shape).values()
        assert decode.paged_kv == rows.paged_kv == biased.paged_kv
        assert decode.batch_size == rows.total_num_rows == biased.total_num_rows == len(shape.lengths)
        assert (rows.max_kv_indices, rows.max_kv_len) == (decode.max_kv_indices, max(shape.lengths))
        assert rows.variant is None
        assert biased.variant is not None
        ops = [Plan.select(d, decode_bench.CUDA, Target.parse("sm_90a")).sku.op for d in (decode, rows, biased)]
        assert ops == ["paged_decode", "paged_prefill", "paged_prefill"]


def test_the_record_has_every_shape_and_no_wrong_result():
    rows = json.loads((ROOT / "bench/results/one_row.json").read_text())["rows"]
    assert [row["shape"] for row in rows] == [shape.name for shape in one_row.SHAPES]
    assert all(impl["error_over_bound"] <= 1 for row in rows for impl in row["impls"])
    for row in rows:
        decode, *others = [impl["us"]["median"] for impl in row["impls"]]
        assert row["over_decode"] == [round(us / decode, 3) for us in others]
