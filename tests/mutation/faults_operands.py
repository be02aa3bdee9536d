"""Faults in what an operand, a list of operands or a workspace may be: in Python, in bindings and in kernels."""

from tests.mutation.mutant import CALLS, MEMO, cpu

CHECKS = "tests/core/test_operands.py"
FORMS = "tests/core/test_forms.py"
APPENDS = "tests/families/kv_cache/test_append_shapes.py"
MERGES = "tests/families/cascade/test_forms.py"
RAGGED = "tests/families/cascade/test_ragged.py"
CONTRACT = "tests/jit/test_contract.py"

OPERAND_FAULTS = (
    cpu(
        "workspace: a storage that shrank is not seen",
        "opfacade/core/checks.py",
        "if size > available:",
        "if size < available - size:",
        f"{CHECKS} {CALLS}",
    ),
    cpu(
        "memo: a workspace whose storage shrank is still the one that was sound",
        "opfacade/core/call_memo.py",
        "min(workspace.numel(), room(workspace))",
        "workspace.numel()",
        MEMO,
    ),
    cpu(
        "workspace: what is no dense tensor is not looked for",
        "opfacade/core/checks.py",
        '    kind_issue = _kind("workspace", workspace)\n    if kind_issue is not None:\n',
        "    kind_issue = None\n    if kind_issue is not None:\n",
        f"{CHECKS} {CALLS}",
    ),
    cpu(
        "can_implement: a fake tensor passes beside a real one",
        "opfacade/core/checks.py",
        "        elif has_memory(tensor) != has_memory(leader):",
        "        elif False:",
        f"{CHECKS} {CALLS}",
    ),
    cpu(
        "can_implement: an expanded input is refused",
        "opfacade/core/strides.py",
        "if self.written and any(s <= 0 for _, s in steps):",
        "if any(s <= 0 for _, s in steps):",
        FORMS,
    ),
    cpu(
        "can_implement: an expanded output passes",
        "opfacade/core/strides.py",
        "if self.written and any(s <= 0 for _, s in steps):",
        "if False:",
        CHECKS,
    ),
    cpu(
        "signature: an expanded output passes",
        "csrc/host/call_signature.h",
        "tensor.stride(axis) < (expandable >> axis & 1 ? 0 : 1)",
        "tensor.stride(axis) < 0",
        CONTRACT,
    ),
    cpu(
        "signature: an expanded input gets the full check",
        "csrc/host/call_signature.h",
        "tensor.stride(axis) < (expandable >> axis & 1 ? 0 : 1)",
        "tensor.stride(axis) < 1",
        CONTRACT,
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
        "cross-check: inputs that overlap themselves are copied element by element",
        "opfacade/observe/crosscheck.py",
        "    if tensor.numel() and self_overlaps(tensor.shape",
        "    if False and self_overlaps(tensor.shape",
        FORMS,
    ),
    cpu(
        "append: all angles of a run are those of its first pair",
        "kernels/kv_cache/unit.cuh",
        "Angle::load(run.e[k])",
        "Angle::load(run.e[0])",
        f"{APPENDS} -k angles",
    ),
    cpu(
        "append: the dtype of the angles is no fact of the kernel",
        "opfacade/backends/cuda/kv_cache.py",
        'facts["rope_dtype"] = descriptor.rope_dtype',
        "pass",
        f"{APPENDS} -k narrow",
    ),
    cpu(
        "merge: a row's lse is written in place before its lanes have read it",
        "kernels/cascade/merge_states.cuh",
        "  if constexpr (C::kInPlace) __syncwarp();",
        "",
        f"{MERGES} -k kernel",
    ),
    cpu(
        "merge: all states of a list are the first",
        "kernels/cascade/merge_states.cuh",
        "return static_cast<const Bits*>(p.list_o[s]) + place",
        "return static_cast<const Bits*>(p.list_o[0]) + place",
        f"{MERGES} -k kernel",
    ),
    cpu(
        "merge: of a list of many states one weighs as the next",
        "kernels/cascade/merge_states.cuh",
        "return states.p.list_lse[s][states.row];",
        "return states.p.list_lse[s ^ 1][states.row];",
        f"{MERGES} -k kernel",
    ),
    cpu(
        "merge: a row of ragged states reads past the last state",
        "kernels/cascade/merge_states.cuh",
        "stop = min(p.indptr[request + 1], p.states);",
        "stop = p.indptr[request + 1];",
        f"{RAGGED} -k kernel",
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
        "merge: state 0 is only read",
        "opfacade/plans/cascade.py",
        'self.state_names[0] if self.in_place else ("", "")',
        '("", "")',
        MERGES,
    ),
    cpu(
        "operands: the elements of a list begin at its second tensor",
        "opfacade/core/tensor_lists.py",
        "zip(operands, given, strict=False)",
        "zip(operands, given[1:], strict=False)",
        "tests/core/test_tensor_lists.py",
    ),
    cpu(
        "operands: rows that a mark hides must be finite",
        "opfacade/core/descriptor.py",
        "(getattr(args, spec.marked_by) != -math.inf)[..., None]",
        "(getattr(args, spec.marked_by) <= math.inf)[..., None]",
        "tests/validation/test_contents.py",
    ),
    cpu(
        "operands: no value is below the least",
        "opfacade/core/descriptor.py",
        "~(tensor >= spec.least)",
        "~(tensor >= -1e30)",
        "tests/validation/test_contents.py",
    ),
)
