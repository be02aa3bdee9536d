"""The toy's kernel, declared."""

from opfacade.plans.toy import PickDescriptor

from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee

_PICK = CudaKernel(
    descriptor=PickDescriptor,
    template="toy/pick",
    impl="elements",
    accepts={"dtype": ("f16", "bf16", "f32")},
    constants=("dtype", "in_place", "num_valid"),
    dtypes={"x": "dtype"},
    guarantee=PrecisionGuarantee(
        math_precision="f32",
        accumulator="none",
        deterministic=True,
        batch_invariant="composition",
        error_model=ErrorModel(id="toy-f32"),
        evidence=("tests/families/test_toy_kernel.py::test_it_keeps_its_guarantee",),
    ),
)

CANDIDATES = (_PICK.candidate,)
