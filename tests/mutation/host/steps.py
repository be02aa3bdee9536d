"""Faults in the steps of a plan of plans at another number of rows."""

from tests.mutation.mutant import host

GROWING, TILES = "plans/_composites/growing.py", "backends/cuda/matmul/tiles.py"
TEST = "tests/plans/test_growing_steps.py"
CHOICES = "plans/_composites/choices.py"
ANY_ROWS, SAME = f"{TEST} -k steps_at_any_number_of_rows", f"{TEST} -k with_and_without_growing_steps"

FAULTS = (
    host("growing steps: sizes stay those of one row", GROWING, "name: factor * rows for", "name: factor for", ANY_ROWS),
    host("growing steps: what does not grow is counted for each row", GROWING, "(2 * size - more, more - size)",
         "(0, size)", ANY_ROWS),
    host("growing steps: a size may grow in any way", GROWING, "more[name] != 2 * size", "more[name] < size",
         f"{TEST} -k not_a_multiple_of_the_rows"),
    host("growing steps: too many rows", GROWING, "if 1 <= fields[name] <= found.most else None",
         "if 1 <= fields[name] else None", f"{TEST} -k too_many_rows"),
    host("growing steps: hidden and width are those of the first layer", GROWING,
         "*[fields[size] for size in problem.sizes if size != name]", "name", f"{TEST} -k with_other_widths"),
    host("growing steps: all choices are kept", CHOICES, "return all(one.size_free for one in asked)",
         "return len(asked) > 0", SAME),
    host("growing steps: the largest workspace of a step is forgotten", CHOICES,
         "+ max([one.workspace for one in found])", "+ 0 * max([one.workspace for one in found])",
         f"{TEST} -k largest_workspace_of_a_step"),
    host("tiles: the last one stays the fastest", TILES, "if time < least or (time == least and at < best):", "if time < 0:",
         "tests/families/matmul/test_matmul_tiles.py -k first_of_the_fastest"),
    host("tiles: one that is slower in part may be the fastest", TILES,
         "+ 0.95 * (longest if longest > memory else memory) > least",
         "+ 2.95 * (longest if longest > memory else memory) > least",
         "tests/families/matmul/test_matmul_tiles.py -k first_of_the_fastest"),
)  # fmt: skip
