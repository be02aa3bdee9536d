"""Faults in plan handles, in torch ops, and in the serving layer."""

from tests.mutation.mutant import cpu

SERVING = "tests/serving"
OPS = "tests/torch_ops/test_ops.py"
MASK = "tests/families/mask"
TABLES = "tests/plans/test_page_tables.py"
PAGING = "opfacade/plans/_attention/page_tables.py"

TORCH_OP_FAULTS = (
    cpu(
        "workspace: it is as large as the last of several plans",
        "opfacade/serving/workspace.py",
        "needed = max((plan.workspace_size for plan in plans), default=0)",
        "needed = plans[-1].workspace_size if plans else 0",
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
        "page table: pages past a request's end overwrite those of the next one",
        PAGING,
        "torch.where(places < counts[:, None], starts[:-1, None] + places, rows * width)",
        "(starts[:-1, None] + places).clamp(max=rows * width)",
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
        "mask: bits past a request's end are those of the next one",
        "kernels/mask/pack_mask.cuh",
        "if (i < left) (i < 4",
        "if (i < 8) (i < 4",
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
