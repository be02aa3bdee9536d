"""CUDA merge of attention states."""

from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.plans.cascade import MergeStatesDescriptor

_MERGE = CudaKernel(
    descriptor=MergeStatesDescriptor,
    template="cascade/merge_states",
    impl="warp_rows",
    accepts={"dtype": ("f16", "bf16", "f32")},
    constants=("dtype", "head_dim", "in_place", "states"),
    dtypes={"o": "dtype"},
    guarantee=PrecisionGuarantee(
        math_precision="f32",
        accumulator="f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        error_model=ErrorModel(id="merge-f32"),
        evidence=(
            "tests/families/cascade/test_cascade_gpu.py::test_runs_repeat_bitwise",
            "tests/testing/test_determinism.py::test_runs_repeat_bitwise_on_a_busy_gpu",
            "tests/testing/test_determinism.py::test_processes_repeat_bitwise",
        ),
    ),
)

CANDIDATES = (_MERGE.candidate,)
