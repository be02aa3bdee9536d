"""The op's kernel, declared: it reads shards in the memory of peers."""

from opfacade.plans.two_level import RestoreDescriptor

from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee

_RESTORE = CudaKernel(
    descriptor=RestoreDescriptor,
    template="two_level/restore",
    impl="elements",
    constants=("group", "num_shards"),
    dtypes=lambda descriptor: (("out", "f32"), ("weight", "u8")),
    guarantee=PrecisionGuarantee(
        math_precision="f64",
        accumulator="f64",
        deterministic=True,
        error_model=ErrorModel(id="restore-f64"),
        evidence=("tests/families/test_two_level_kernel.py::test_it_reads_operands_on_several_devices",),
    ),
)

CANDIDATES = (_RESTORE.candidate,)
