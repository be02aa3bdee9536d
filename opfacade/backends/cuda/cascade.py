"""CUDA merge of attention states."""

from opfacade.backends.cuda.declared import REPEATS, CudaKernel, repeatable
from opfacade.plans.cascade import MergeStatesDescriptor

_MERGE = CudaKernel(
    descriptor=MergeStatesDescriptor,
    template="cascade/merge_states",
    impl="warp_rows",
    accepts={"dtype": ("f16", "bf16", "f32")},
    constants=("dtype", "head_dim", "in_place", "states"),
    dtypes={"o": "dtype"},
    guarantee=repeatable(
        "f32", "f32", "merge-f32", ("tests/families/cascade/test_cascade_gpu.py::test_runs_repeat_bitwise", *REPEATS)
    ),
)

CANDIDATES = (_MERGE.candidate,)
