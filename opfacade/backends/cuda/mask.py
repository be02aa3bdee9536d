"""CUDA packing of masks."""

from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.plans.mask import PackMaskDescriptor

_PACK = CudaKernel(
    descriptor=PackMaskDescriptor,
    template="mask/pack_mask",
    impl="bytes",
    constants=("bit_order", "segments"),
    dtypes=lambda descriptor: (("packed", "u8"),),
    guarantee=PrecisionGuarantee(
        math_precision="integer",
        accumulator="none",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=ErrorModel(id="exact"),
        evidence=(
            "tests/families/mask/test_mask_gpu.py::test_runs_repeat_bitwise",
            "tests/families/mask/test_reference.py::test_a_kernel_on_the_host_packs_every_byte",
        ),
    ),
)

CANDIDATES = (_PACK.candidate,)
