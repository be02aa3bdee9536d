"""Faults in products of groups: which rows are a group's, what is read of the others, and what the harness lets pass."""

from tests.mutation.mutant import host

TABLES, CUT = "plans/_matmul_groups.py", "backends/reference/_matmul_groups.py"
JUDGE, FIELDS = "testing/families/_matmul_grouped.py", "plans/_matmul_grouped.py"
GROUPED = "tests/families/matmul/test_grouped.py"
FORMULA = f"{GROUPED} -k is_the_formula"

FAULTS = (
    host("groups: the last row of a group is lost", CUT,
         "_run_rows(d, args, group, slice(first, stop), run)", "_run_rows(d, args, group, slice(first, stop - 1), run)",
         FORMULA),
    host("groups: all have the weight of the first", CUT,
         '{name: _at(getattr(args, name), group) for name in ("weight", "bias", "weight_scale")}',
         '{name: _at(getattr(args, name), 0) for name in ("weight", "bias", "weight_scale")}', FORMULA),
    host("groups: gathered rows have the scales of the rows of out", CUT,
         "return _select(scale, ids, 0 if", "return _select(scale, ids * 0, 0 if", FORMULA),
    host("groups: an id below 0 counts from the end", CUT, "((ids >= 0) & (ids < d.rows_of_x))", "(ids < d.rows_of_x)",
         f"{GROUPED} -k reach_no_memory"),
    host("groups: a group's own rows are cleared", CUT, "free[group] if d.layout", "free[0] if d.layout",
         f"{GROUPED} -k outside_every_group"),
    host("groups: an empty group keeps sums of another call", CUT,
         'if d.layout == "k":', 'if d.layout == "k" and first < stop:',
         f"{GROUPED} -k empty_group"),
    host("groups: a count past the rows is all of them", TABLES, "count if 0 <= count <= problem.total_num_rows else 0",
         "min(max(count, 0), problem.total_num_rows)", f"{GROUPED} -k reach_no_memory"),
    host("groups: indptr may be one past the rows", TABLES, 'values=(0, total + 1))\n        found["indptr"]',
         'values=(0, total + 2))\n        found["indptr"]', f"{GROUPED} -k out_of_range"),
    host("groups: bounds may fall", TABLES, "_replace(rising=True)", "_replace(rising=False)", f"{GROUPED} -k that_fall"),
    host("groups: elements of no group are judged at full", FIELDS, "(found[0] & read, found[1])", "found",
         f"{GROUPED} -k no_ones_at_full"),
    host("groups: every element is of no group at full", TABLES, "[first:stop] = True", "[first:stop] = False",
         f"{GROUPED} -k no_ones_at_full"),
    host("groups: the harness does not look outside them", JUDGE, "judged and not same_bits(rest, was)", "False",
         f"{GROUPED} -k outside_every_group"),
    host("groups: the harness judges the first alone", JUDGE, "part_of(problem, call, group, chosen)",
         "part_of(problem, call, 0, chosen)", f"{GROUPED} -k wrong_row"),
)  # fmt: skip
