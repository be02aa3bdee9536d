"""Faults in the rules for an operand, a list of operands or a workspace: in Python, in bindings and in kernels."""

from tests.mutation.mutant import CALLS, cpu

CHECKS = "tests/core/test_operands.py"
FORMS = "tests/core/test_forms.py"
MERGES = "tests/families/cascade/test_forms.py"
RAGGED = "tests/families/cascade/test_ragged.py"

OPERAND_FAULTS = (
    cpu(
        "workspace: a storage that shrank is not seen",
        "opfacade/core/checks.py",
        "if size > available:",
        "if size < available - size:",
        f"{CHECKS} {CALLS}",
    ),
    cpu(
        "a block table must lie by itself",
        "opfacade/plans/_attention/paging.py",
        'rows = TensorSpec((batch, Dim("max_pages")), "i32", "index", alignment=4)',
        'rows = index_spec(batch, Dim("max_pages"))',
        FORMS,
    ),
    cpu(
        "append: rows of a block table lie as far apart as they are wide",
        "csrc/paged/pool.h",
        "table.row_stride = indices.size(0) > 1 ? indices.stride(0) : 0;",
        "table.row_stride = indices.size(0) > 1 ? indices.size(1) : 0;",
        "tests/emulator/test_emulated_forms.py -k everything-varied",
    ),
    cpu(
        "merge: of a list of many states one weighs as the next",
        "kernels/cascade/merge_states.cuh",
        "return states.p.list_lse[s][states.row];",
        "return states.p.list_lse[s ^ 1][states.row];",
        f"{MERGES} -k kernel",
    ),
    cpu(
        "merge: heads of ragged states are those of the row's number",
        "kernels/cascade/merge_states.cuh",
        "const int64_t request = row / p.heads, head = row % p.heads;",
        "const int64_t request = row / p.heads, head = row % 2;",
        f"{RAGGED} -k kernel",
    ),
    cpu(
        "merge: an indptr of states may fall",
        "opfacade/core/descriptor.py",
        "diff(prepend=tensor[:1]) < 0",
        "diff(prepend=tensor[:1]) < -1000",
        f"{RAGGED} -k full",
    ),
    cpu(
        "merge: the binding takes lse of a list from where o is",
        "csrc/cascade/merge_states.cc.jinja",
        "s < params.states; ++s) params.list_lse[s] = in.data<float>();",
        "s < params.states; ++s) params.list_lse[s] = params.lse, in.tensor();",
        f"{MERGES} -k kernel",
    ),
    cpu(
        "merge: other states of a merge in place may change",
        "opfacade/testing/families/cascade.py",
        "exact = [torch.zeros_like(other) for other in others]",
        "exact = [torch.full_like(other, 1e9) for other in others]",
        MERGES,
    ),
    cpu(
        "operands: the elements of a list begin at its second tensor",
        "opfacade/core/tensor_lists.py",
        "zip(parts.names, tensors, strict=False)",
        "zip(parts.names, tensors[1:], strict=False)",
        "tests/core/test_tensor_lists.py",
    ),
    cpu(
        "operands: one more than a field is the field",
        "opfacade/core/operands.py",
        "getattr(sizes, field) + int(more or 0)",
        "getattr(sizes, field) + 0 * int(more or 0)",
        "tests/core/test_operands.py",
    ),
    cpu(
        "operands: rows that a mark hides must be finite",
        "opfacade/core/descriptor.py",
        "(getattr(args, contents.marked_by) != -math.inf)[..., None]",
        "(getattr(args, contents.marked_by) <= math.inf)[..., None]",
        "tests/validation/test_contents.py",
    ),
    cpu(
        "operands: no value is below the least",
        "opfacade/core/descriptor.py",
        "~(tensor >= contents.least)",
        "~(tensor >= -1e30)",
        "tests/validation/test_contents.py",
    ),
)
