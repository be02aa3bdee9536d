"""Faults planted in conversions of weights: wrong orders of codes, zero points, scales of a wrong group, and refusals."""

from tests.mutation.mutant import cpu

TESTS = "tests/families/weights/test_reference.py"
LIE = f"{TESTS} -k library_has_them"


def fault(name, file, old, new, tests=LIE):
    return cpu(f"conversions of weights: {name}", f"opfacade/{file}", old, new, tests)


PLACES, STEPS, REFERENCE = "plans/_weights/stored.py", "plans/_weights/stored_steps.py", "backends/reference/weights.py"
FAULTS = (
    fault("columns of AWQ are in order", PLACES, "return place % 2 * 4 + place // 2", "return place"),
    fault("words of AWQ are written in order", PLACES, "return place % 4 * 2 + place // 4", "return place"),
    fault("zero points of AWQ are in order", STEPS, "interleaved(column % 8) if stored.zeros_interleaved",
          "column % 8 if True"),
    fault("zero points of GPTQ are as stored", PLACES, "    zero_less=1,", "    zero_less=0,"),
    fault("zero points of GPTQ are less by 1 twice", STEPS, "+ stored.zero_less & 15", "- stored.zero_less & 15"),
    fault("offset codes are taken for two's complement", PLACES, "return 8 if STORED[fields.source].offset",
          "return 0 if True"),
    fault("halves of HQQ are exchanged", PLACES, "1 - row // e.half", "row // e.half"),
    fault("elements of k of tinygemm are exchanged", PLACES, "k % 2 * 4 + inside % 32 // 8", "k % 2 + inside % 32 // 8 * 2"),
    fault("scales of HQQ are by group first", STEPS, "(first * row + second, constant(0, \"i64\"))",
          "(second * row + first, constant(0, \"i64\"))"),
    fault("the reference has the order of AWQ reversed", REFERENCE, "[0, 4, 1, 5, 2, 6, 3, 7]", "[0, 2, 4, 6, 1, 3, 5, 7]"),
    fault("all experts are unpacked at once", REFERENCE, "for one in range(d.batch):",
          "held = [_codes(w) for w in args.stored_weight]\n    for one in range(d.batch):", f"{TESTS} -k memory_of_one"),
    fault("a slice of a checkpoint is taken", PLACES, "if weight.group_offset:", "if False:", f"{TESTS} -k does_not_support"),
    fault("a scale of 0 passes", "plans/_weights/weight.py", "found[0] | (whole == 0)", "found[0]", f"{TESTS} -k lose_bits"),
)  # fmt: skip
