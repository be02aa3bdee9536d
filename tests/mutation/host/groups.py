"""Faults in grouped products: the rows of a group, reads of other rows, and errors that the harness accepts."""

from tests.mutation.mutant import host

TABLES, CUT = "plans/_matmul/groups.py", "backends/reference/_matmul_groups.py"
GROUPED = "tests/families/matmul/test_grouped.py"
FORMULA = f"{GROUPED} -k is_the_formula"

FAULTS = (
    host("groups: gathered rows have the scales of the rows of out", CUT,
         "return _select(scale, ids, 0 if", "return _select(scale, ids * 0, 0 if", FORMULA),
    host("groups: an empty group keeps sums of another call", CUT,
         'if d.layout == "k":', 'if d.layout == "k" and first < stop:',
         f"{GROUPED} -k empty_group"),
    host("groups: a count past the rows is all of them", TABLES, "count if 0 <= count <= problem.total_num_rows else 0",
         "min(max(count, 0), problem.total_num_rows)", f"{GROUPED} -k reach_no_memory"),
)  # fmt: skip
