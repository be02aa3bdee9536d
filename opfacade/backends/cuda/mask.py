"""CUDA packing of masks."""

from opfacade.backends.cuda.declared import CudaKernel, repeatable
from opfacade.plans.mask import PackMaskDescriptor

_PACK = CudaKernel(
    descriptor=PackMaskDescriptor,
    template="mask/pack_mask",
    impl="bytes",
    constants=("bit_order", "segments"),
    dtypes=lambda descriptor: (("packed", "u8"),),
    guarantee=repeatable(
        "integer",
        "none",
        "exact",
        (
            "tests/families/mask/test_mask_gpu.py::test_runs_repeat_bitwise",
            "tests/families/mask/test_reference.py::test_a_kernel_on_the_host_packs_every_byte",
        ),
        batch_invariant="composition",
    ),
)

CANDIDATES = (_PACK.candidate,)
