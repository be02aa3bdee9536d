"""Rows of `verify` over all inputs of a small domain."""

from itertools import islice

from opfacade.tools.exhaustive import proven


def test_a_row_for_each_function_and_dtype_says_what_was_run():
    told = []
    rows = list(islice(proven("map", "reference", "cpu", True, told.append), 5))
    assert [(row["function"], row["dtype"], row["inputs"]) for row in rows[:4]] == [
        ("exp", "f16", 65536), ("exp", "bf16", 65536), ("exp", "f8_e4m3", 256), ("exp", "f8_e5m2", 256),
    ]  # fmt: skip
    assert rows[4]["function"] == "exp2"
    assert all(row["ok"] and row["op"] == "map" and 0 < row["worst"] <= 1 for row in rows)
    assert told[0].startswith("ok     function=exp dtype=f16")


def test_an_op_without_a_small_domain_has_no_rows():
    assert list(proven("merge_states", "reference", "cpu", False, print)) == []
