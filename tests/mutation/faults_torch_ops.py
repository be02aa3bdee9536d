"""Faults in plan handles, in ops of torch, and in what serving adds to plans."""

from tests.mutation.mutant import R, cpu

HANDLES = "tests/core/test_plan_handles.py"
OPAQUE = "tests/core/test_opaque.py"
SERVING = "tests/serving"
OPS = "tests/torch_ops/test_ops.py"
COMPILED = "tests/torch_ops/test_compile.py -k plan"
IN_PLACE = "tests/torch_ops/test_in_place.py"
MASK = "tests/families/mask"
TABLES = "tests/plans/test_page_tables.py"
PAGING = "opfacade/plans/_attention/page_tables.py"

TORCH_OP_FAULTS = (
    cpu(
        "handles: the number of a plan that is gone is given again",
        "opfacade/core/plan_handles.py",
        "    handle = next(_numbers)\n",
        "    handle = next(n for n in range(2, 2**31) if n not in _plans)\n",
        HANDLES,
    ),
    cpu(
        "handles: the first plan is 0, of which torch.compile makes a graph of its own",
        "opfacade/core/plan_handles.py",
        "itertools.count(2)",
        "itertools.count(0)",
        HANDLES,
    ),
    cpu(
        "opaque: Dynamo traces into a run",
        "opfacade/core/opaque.py",
        "        function._torchdynamo_disable = True  # type: ignore[attr-defined]\n",
        "",
        OPAQUE,
    ),
    cpu(
        "opaque: Dynamo compiles the frames below a run",
        "opfacade/core/opaque.py",
        "        frames.set_code_exec_strategy(_codes.pop(), frames._FrameExecStrategy(skip, skip))",
        "        _codes.pop()",
        OPAQUE,
    ),
    cpu(
        "inductor: an op reads a copy of what it overwrites from the original",
        "opfacade/torch_ops/kept_copies.py",
        "    _copy_own_reads(call)\n    for",
        "    for",
        f"{IN_PLACE} -k norm-residual-own_read",
    ),
    cpu(
        "inductor: a copy between two changes is the last value",
        "opfacade/torch_ops/kept_copies.py",
        'return value.op == "call_function" and not _is_returned_view(user, value)',
        "return False",
        f"{IN_PLACE} -k norm-residual-between",
    ),
    cpu(
        "inductor: a value between two changes reaches another input after the second one",
        "opfacade/torch_ops/kept_copies.py",
        "return user.target is torch.ops.aten.copy_.default and user.args[0] is not given and user.args[1] is value",
        "return False",
        f"{IN_PLACE} -k norm-residual-stored",
    ),
    cpu(
        "inductor: an overwritten input that is returned is copied",
        "opfacade/torch_ops/kept_copies.py",
        "and not _is_returned_view(user, value)",
        "",
        f"{IN_PLACE} -k not_copied",
    ),
    cpu(
        "inductor: what reads an operand is computed after the op that overwrites it",
        "opfacade/torch_ops/inductor.py",
        "            V.graph.mark_buffer_mutated(tensor.get_name())\n",
        "",
        f"{IN_PLACE} -k computes",
    ),
    cpu(
        "workspace: it grows although it is frozen",
        "opfacade/serving/workspace.py",
        "        if self._frozen:\n",
        "        if False:\n",
        SERVING,
    ),
    cpu(
        "workspace: it shrinks to a smaller plan",
        "opfacade/serving/workspace.py",
        "if needed > self.size:",
        "if needed != self.size:",
        SERVING,
    ),
    cpu(
        "workspace: it is as large as the last of several plans",
        "opfacade/serving/workspace.py",
        "needed = max((plan.workspace_size for plan in plans), default=0)",
        "needed = plans[-1].workspace_size if plans else 0",
        SERVING,
    ),
    cpu(
        "workspace: it grows while a graph is captured",
        "opfacade/serving/workspace.py",
        "if capturing(self._device):",
        "if False:",
        SERVING,
    ),
    cpu(
        "plan cache: a batch of a size has the plan of the next one",
        "opfacade/serving/plan_cache.py",
        "bisect_left(self.sizes, n)",
        "min(bisect_left(self.sizes, n + 1), len(self.sizes) - 1)",
        SERVING,
    ),
    cpu(
        "plan cache: the workspace is not reserved",
        "opfacade/serving/plan_cache.py",
        "        self.workspace.reserve(*plans)\n",
        "",
        SERVING,
    ),
    cpu(
        "page table: a full last page has length 0",
        PAGING,
        "(held - 1) % page_size + 1",
        "held % page_size",
        TABLES,
    ),
    cpu(
        "page table: pages past a request's end overwrite those of the next one",
        PAGING,
        "torch.where(places < counts[:, None], starts[:-1, None] + places, rows * width)",
        "(starts[:-1, None] + places).clamp(max=rows * width)",
        TABLES,
    ),
    cpu(
        "page table: a request that does not fit keeps its length",
        PAGING,
        "held = torch.minimum(kv_lens, counts * page_size)",
        "held = kv_lens",
        TABLES,
    ),
    cpu(
        "page table: a csr request without pages has a length",
        PAGING,
        "torch.where(counts > 0, lens, 0).int()",
        "lens.int()",
        TABLES,
    ),
    cpu(
        "torch ops: what an op overwrites is only read in its schema",
        "opfacade/torch_ops/forms.py",
        "for name, spec in p.items() if spec.written)",
        'for name, spec in p.items() if spec.role == "out")',
        OPS,
    ),
    cpu(
        "pack_mask: segments of a mask may descend",
        "opfacade/plans/mask.py",
        "        least = start\n",
        "",
        f"{MASK}/test_reference.py -k segments",
    ),
    cpu(
        "torch ops: the functional form overwrites its input",
        "opfacade/torch_ops/library.py",
        "return tensor.clone() if sound else tensor",
        "return tensor",
        OPS,
    ),
    cpu(
        "torch ops: every output has the dtype of the first input",
        "opfacade/torch_ops/outputs.py",
        "        if self.dtype is not None:\n",
        "        if False:\n",
        OPS,
    ),
    cpu(
        "torch ops: results without inputs are made on the CPU",
        "opfacade/torch_ops/outputs.py",
        "return torch.empty(shape, dtype=dtype, device=device)",
        "return torch.empty(shape, dtype=dtype)",
        "tests/torch_ops/test_without_inputs.py",
    ),
    cpu(
        "torch ops: the workspace is taken for an operand",
        "opfacade/torch_ops/library.py",
        "args = make(*given[:at], *given[at + 1 :])",
        "args = make(*given)",
        OPS,
    ),
    cpu(
        "torch ops: a gradient is dropped in silence while a call is traced",
        "opfacade/torch_ops/library.py",
        "    if wanting:\n",
        "    if False:\n",
        "tests/torch_ops/test_compile.py -k gradient",
    ),
    cpu(
        "torch ops: the handle is a constant of the graph",
        "opfacade/torch_ops/forms.py",
        "['SymInt plan', *parts]",
        "['int plan', *parts]",
        COMPILED,
    ),
    cpu(
        "mask: bits begin with the most significant one",
        f"{R}/mask.py",
        'weights if descriptor.bit_order == "little" else',
        'weights if descriptor.bit_order == "big" else',
        MASK,
    ),
    cpu(
        "mask: a request begins in the byte in which the one before it ends",
        "kernels/mask/pack_mask.cuh",
        "return (length + 7) / 8;",
        "return length / 8;",
        MASK,
    ),
    cpu(
        "mask: bits past a request's end are those of the next one",
        "kernels/mask/pack_mask.cuh",
        "if (i < left) (i < 4",
        "if (i < 8) (i < 4",
        MASK,
    ),
    cpu(
        "mask: a wrong indptr is not clamped",
        "kernels/mask/pack_mask.cuh",
        "at < own.bytes() && start + at < p.bytes;",
        "at < own.bytes();",
        MASK,
    ),
    cpu(
        "mask: bytes behind the last request are left as they were",
        "kernels/mask/pack_mask.cuh",
        "p.packed[at] = 0;",
        "",
        MASK,
    ),
    cpu(
        "ops: a copy of a transposed operand is contiguous where the call is traced",
        "opfacade/torch_ops/library.py",
        "{n: t.clone() for n, t in self._copied(inputs)}",
        "{n: t.contiguous().clone() for n, t in self._copied(inputs)}",
        "tests/torch_ops/test_fake_strides.py -k transposed_residual",
    ),
    cpu(
        "ops: a copy of a transposed operand is contiguous",
        "opfacade/torch_ops/library.py",
        "return tensor.clone() if sound",
        "return tensor.contiguous().clone() if sound",
        "tests/torch_ops/test_fake_strides.py -k transposed_residual",
    ),
)
