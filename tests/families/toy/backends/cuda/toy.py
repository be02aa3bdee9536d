"""The declaration of the toy family's kernel."""

from opfacade.plans.toy import KeepDescriptor, PickDescriptor

from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.dtypes import ITEMSIZE
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

_KEEP = CudaKernel(
    descriptor=KeepDescriptor,
    template="toy/keep",
    impl="bits",
    constants=lambda descriptor: {"elem_bytes": ITEMSIZE[descriptor.dtype]},
    dtypes={"x": "dtype"},
    guarantee=PrecisionGuarantee(
        math_precision="copy",
        accumulator="none",
        deterministic=True,
        batch_invariant="composition",
        error_model=ErrorModel(id="exact"),
        evidence=("tests/families/test_toy_dtypes.py::test_the_kernel_keeps_its_guarantee",),
    ),
)

CANDIDATES = (_PICK.candidate, _KEEP.candidate)
