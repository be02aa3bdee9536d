"""Faults in the operand language: strides, broadcast axes, values, valid rows, in place, lists, and their checks."""

from tests.mutation.mutant import cpu

TOYS = "tests/families/test_toy_operands.py"
VALUES = "tests/validation/test_values.py"

LANGUAGE_FAULTS = (
    cpu(
        "device values: a wrong count is clamped to all rows",
        "kernels/validation/value_rules.h",
        "? *o.valid : 0;",
        "? *o.valid : o.rows;",
        VALUES,
    ),
    cpu(
        "device values: rows of a later axis are entries of axis 0",
        "kernels/validation/value_rules.h",
        "position / o.row_elements % o.rows < rows",
        "position / (o.elements / o.rows) < rows",
        VALUES,
    ),
    cpu(
        "testing: rows that are not valid hold what others do",
        "opfacade/testing/inputs.py",
        'rest.fill_(float("nan"))',
        "rest.abs()",
        TOYS,
    ),
    cpu(
        "map: a reflected place is right for one period alone",
        "opfacade/programs/evaluate.py",
        "        rest = torch.remainder(place, period)\n",
        "        rest = place.abs()\n",
        "tests/programs/test_by_hand.py -k reflected",
    ),
    cpu(
        "conversion: a float of 2^63 or more is a negative u64",
        "opfacade/programs/integers.py",
        "high = inner >= 2.0**63",
        "high = inner > 2.0**64",
        "tests/programs/test_by_hand.py -k largest_count",
    ),
)
