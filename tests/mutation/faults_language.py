"""Faults in the language of operands: strides, broadcast axes, values, valid rows, in place, lists, and who holds to them."""

from tests.mutation.mutant import cpu

TABLE = "tests/jit/test_operand_table.py"
TOYS = "tests/families/test_toy_operands.py"
VALUES = "tests/validation/test_values.py"
PREPARED = "tests/families/rotary/test_qkv_prepare.py"
FP8 = "tests/families/attention/test_fp8_strides.py"
CONTRACT = "csrc/host/call_signature.h"
STRIDES = "opfacade/core/strides.py"

LANGUAGE_FAULTS = (
    cpu(
        "strides: a scalar has a last dimension", STRIDES, " and len(shape) > 0 and shape[-1] > 1", " and shape[-1] > 1", TABLE
    ),
    cpu("strides: any axis may be expanded", STRIDES, "s <= 0 and axis not in self.expandable", "False", f"{TABLE} {FP8}"),
    cpu("strides: a step is of elements", STRIDES, "s * itemsize % self.step", "s % self.step", f"{TABLE} {FP8}"),
    cpu(
        "strides: pages lie anyhow",
        STRIDES,
        "None if self.multiple is None else _multiple",
        "None if True else _whole",
        f"{TABLE} {FP8}",
    ),
    cpu("strides: what is contiguous has any strides", STRIDES, "if n > 1 and s != step:", "if False:", TABLE),
    cpu(
        "operands: what is written may be expanded",
        "opfacade/core/operands.py",
        "() if self.written or self.layout",
        "() if self.layout",
        TABLE,
    ),
    cpu("signature: a strided operand is one of rows", CONTRACT, "if (rows && rank > 0", "if (rank > 0", TABLE),
    cpu(
        "signature: a step is of elements", CONTRACT, "tensor.stride(axis) * bytes % step", "tensor.stride(axis) % step", TABLE
    ),
    cpu("signature: pages lie anyhow", CONTRACT, "return has_whole(tensor) && ", "return ", TABLE),
    cpu("signature: each axis is told as the first", CONTRACT, "expandable >> axis & 1", "expandable & 1", TABLE),
    cpu(
        "the signature is not told of a step",
        "opfacade/backends/cuda/host/direct.py",
        "in expandable), step, *(",
        "in expandable), 1, *(",
        TABLE,
    ),
    cpu(
        "in place: the input is only read",
        "opfacade/core/in_place.py",
        'role="inout", layout',
        "layout",
        f"{TABLE} tests/core/test_in_place.py",
    ),
    cpu(
        "in place: the output is there",
        "opfacade/core/in_place.py",
        "if not spec.replaces}",
        "}",
        f"{TABLE} tests/core/test_in_place.py",
    ),
    cpu(
        "a list that is too long has no bound",
        "opfacade/core/checks.py",
        "if name in lists and isinstance(",
        "if False and isinstance(",
        TABLE,
    ),
    cpu(
        "a list is no tensor, and that is all",
        "opfacade/core/checks.py",
        "if isinstance(value, (list, tuple)):",
        "if False:",
        TABLE,
    ),
    cpu(
        "plan: a call is held to the descriptor's operands, not to what its kernel needs",
        "opfacade/core/candidate.py",
        "known if self.needs is None else",
        "known if True else",
        FP8,
    ),
    cpu(
        "fp8: a page is whole tokens apart",
        "opfacade/backends/cuda/attention/prefill_sm90_fp8.py",
        "heads = 3 - ",
        "heads = ",
        FP8,
    ),
    cpu(
        "values: the bound itself passes",
        "opfacade/validation/values.py",
        "tensor >= one.end(args)",
        "tensor > one.end(args)",
        f"{TOYS} {VALUES}",
    ),
    cpu(
        "values: what is below the least passes",
        "opfacade/validation/values.py",
        "(tensor < one.first) | ",
        "",
        f"{TOYS} {VALUES}",
    ),
    cpu(
        "values: rows that are not valid are read",
        "opfacade/validation/values.py",
        "if rows is not None:",
        "if False:",
        f"{TOYS} {VALUES}",
    ),
    cpu(
        "values: rows of a later axis are entries of axis 0",
        "opfacade/validation/values.py",
        "spec.below, spec.valid_axis)",
        "spec.below)",
        f"{VALUES} {PREPARED} -k rows_that_are_not_valid or later_axis",
    ),
    cpu("values: full does not look", "opfacade/validation/full.py", "        self._bounds.judge(args)\n", "", TOYS),
    cpu(
        "full: rows that are not valid are to be finite",
        "opfacade/core/descriptor.py",
        "if spec.valid_rows:",
        "if False:",
        TOYS,
    ),
    cpu(
        "device values: the bound itself passes",
        "kernels/validation/value_rules.h",
        "value < o.stop;",
        "value <= o.stop;",
        VALUES,
    ),
    cpu(
        "device values: strides are those of the copy",
        "kernels/validation/value_rules.h",
        "? load_value(o, offset_of(o, i))",
        "? load_value(o, i)",
        VALUES,
    ),
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
        "device values: all are signed",
        "kernels/validation/value_rules.h",
        "if (o.is_signed) return",
        "if (true) return",
        VALUES,
    ),
    cpu(
        "device values: the operator gets what the caller gave",
        "opfacade/validation/device_values.py",
        "trusted[one.name] = safe",
        "trusted[one.name] = given",
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
        "testing: rows that are not valid may be written",
        "opfacade/testing/harness.py",
        "if old is not None and now is not None and not same_bits",
        "if False and not same_bits",
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
        "conversion: a float one past the largest integer becomes the smallest",
        "opfacade/programs/integers.py",
        "wide >= float(most + 1), wide < float(least)",
        "wide > float(most + 1), wide < float(least)",
        "tests/programs/test_by_hand.py -k largest",
    ),
    cpu(
        "norm: a layer norm of the rounded sum takes the mean of the sum before it is rounded",
        "opfacade/plans/_norm_program.py",
        'Stage(reducer="sum", value=summed[1], axes=axes),)',
        'Stage(reducer="sum", value=summed[0], axes=axes),)',
        "tests/programs/test_by_hand.py -k layer_norm",
    ),
    cpu(
        "softmax: the logarithm of the sum is added to the maximum before it is subtracted",
        "opfacade/plans/softmax.py",
        'y - most - apply("log", total) if',
        'y - (most + apply("log", total)) if',
        "tests/programs/test_by_hand.py -k high_row",
    ),
    cpu(
        "recipes: a log softmax subtracts the maximum and the logarithm of the sum at once",
        "opfacade/recipes/softmaxes.py",
        "return x - most - w.log(total)",
        "return x - (most + w.log(total))",
        "tests/programs/test_by_hand.py -k high_row",
    ),
    cpu(
        "recipes: a cross entropy adds the maximum to the logarithm of the sum",
        "opfacade/recipes/class_losses.py",
        "(self.log + (self.most - picked))",
        "(self.log + self.most - picked)",
        "tests/programs/test_by_hand.py -k high_row",
    ),
    cpu(
        "conversion: a float of 2^63 or more is a negative u64",
        "opfacade/programs/integers.py",
        "high = inner >= 2.0**63",
        "high = inner > 2.0**64",
        "tests/programs/test_by_hand.py -k largest_count",
    ),
    cpu(
        "map kernel: a reflected place is right for one period alone",
        "kernels/elementwise/map.cuh",
        "period = size > 1 ? 2 * size - 2 : 1,",
        "period = size > 1 ? 2 * size - 1 : 1,",
        "tests/families/elementwise/test_by_hand_kernel.py -k reflect",
    ),
    cpu(
        "kernels: a float one past the largest integer is converted as it is",
        "kernels/common/operations.cuh",
        "return a >= kEnd ? kMost",
        "return a > kEnd ? kMost",
        "tests/families/elementwise/test_by_hand_kernel.py -k past_the_ends",
    ),
    cpu(
        "fold bound: a sum beyond the largest float has one",
        "opfacade/programs/reduce_bound.py",
        "_decided(value, radius).masked_fill(size > LARGEST[how.type], math.inf))}",
        "_decided(value, radius))}",
        "tests/families/norm/test_range.py -k infinite",
    ),
    cpu(
        "kernels: a NaN is not the maximum",
        "kernels/common/operations.cuh",
        "OPF_OP float maximum_(float a, float b) { return max_nan(a, b); }",
        "OPF_OP float maximum_(float a, float b) { return fmaxf(a, b); }",
        "tests/emulator/test_poison.py -k quantize-rows",
    ),
)
