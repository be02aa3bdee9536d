"""Torch operators without a recipe, by reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REDUCERS = "hash_tensor"
PAIRS = "nn.functional.pdist"
WINDOWS = """
nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d
nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.avg_pool1d
nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d
nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d max_pool2d_with_indices_backward
nn.functional.interpolate nn.functional.upsample_bilinear nn.functional.upsample_nearest _upsample_bilinear2d_aa
nn.functional.grid_sample grid_sampler_2d grid_sampler_3d
"""
SCANS = """
cumsum cumprod cummax cummin logcumsumexp cumulative_trapezoid masked.cumsum masked.cumprod masked_scatter linalg.vander
tril_indices triu_indices nn.functional.ctc_loss
"""
SCATTERS = """
scatter scatter_add scatter_reduce index_add index_copy index_put index_reduce put _unsafe_masked_index_put_accumulate
_segment_reduce nn.functional.embedding_bag nn.functional.max_unpool1d nn.functional.max_unpool2d nn.functional.max_unpool3d
bincount histc histogram histogramdd as_strided_scatter
"""
ORDER = """
sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile unique unique_consecutive searchsorted bucketize
nonzero nonzero_static argwhere masked_select masked.median combinations
"""
FUNCTIONS = """
digamma polygamma special.polygamma special.zeta igamma igammac gcd lcm special.airy_ai special.modified_bessel_k0
special.modified_bessel_k1 special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 special.spherical_bessel_j0
special.chebyshev_polynomial_t special.chebyshev_polynomial_u special.chebyshev_polynomial_v special.chebyshev_polynomial_w
special.hermite_polynomial_h special.hermite_polynomial_he special.laguerre_polynomial_l special.legendre_polynomial_p
special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v
special.shifted_chebyshev_polynomial_w
"""
VIEWS = """
item broadcast_to broadcast_shapes broadcast_tensors chunk unsafe_chunk expand expand_as as_strided as_strided_copy split
split_with_sizes split_with_sizes_copy unsafe_split tensor_split hsplit vsplit dsplit view view_as reshape_as unflatten
atleast_1d atleast_2d atleast_3d squeeze unsqueeze unbind T H mT mH imag view_as_real view_as_complex __getitem__ resize_
resize_as_ empty empty_like empty_strided empty_permuted new_empty new_empty_strided
"""
SEVERAL = "gradient cartesian_prod _chunk_cat _unsafe_masked_index _batch_norm_with_update"
COMPLEX = "complex polar cdouble cfloat chalf"
PRODUCTS = """
addmv addbmm addr tensordot linalg.multi_dot linalg.matrix_power
linalg.tensorinv linalg.tensorsolve torch._scaled_mm_v2 sparse.sampled_addmm sparse.mm
to_sparse nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
nn.functional.conv_transpose2d nn.functional.conv_transpose3d stft istft
fft.fft fft.fft2 fft.fftn fft.hfft fft.hfft2 fft.hfftn fft.rfft fft.rfft2 fft.rfftn fft.ifft fft.ifft2 fft.ifftn fft.ihfft
fft.ihfft2 fft.ihfftn fft.irfft fft.irfft2 fft.irfftn
cholesky cholesky_inverse cholesky_solve geqrf lu lu_solve lu_unpack logdet matrix_exp ormqr qr svd svd_lowrank pca_lowrank
pinverse triangular_solve linalg.cholesky linalg.cholesky_ex linalg.cond linalg.det linalg.eig linalg.eigh linalg.eigvals
linalg.eigvalsh linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve
linalg.lstsq linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.matrix_rank linalg.pinv linalg.qr
linalg.slogdet linalg.solve linalg.solve_ex linalg.solve_triangular linalg.svd linalg.svdvals
"""
OTHERS = """
nn.functional.scaled_dot_product_attention torch.ops.aten._flash_attention_forward torch.ops.aten._efficient_attention_forward
nn.functional.multi_head_attention_forward nn.functional.linear_cross_entropy
"""
USERS = """
jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args jiterator_binary_return_by_ref jiterator_2inputs_2outputs
"""

WAITING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        reason: tuple(names.split())
        for reason, names in {
            "needs an exclusive-or reducer": REDUCERS,
            "needs the indices of pairs, and so an exact square root": PAIRS,
            "needs folds over windows": WINDOWS,
            "needs scans": SCANS,
            "needs scatters": SCATTERS,
            "needs sorting or compaction": ORDER,
            "needs a function or loop that programs do not support": FUNCTIONS,
            "needs results of different shapes, or a masked index": SEVERAL,
            "needs no kernel: a view, or an allocation": VIEWS,
            "complex types are not supported": COMPLEX,
            "left to libraries: other products, convolutions, transforms, factorisations": PRODUCTS,
            "has its own plan": OTHERS,
            "use `opfacade.plans.elementwise.elementwise`, which traces a function": USERS,
        }.items()
    }
)


def reason_of(name: str) -> str | None:
    """The reason why a torch operator (or the last part of its name) has no recipe."""
    for reason, names in WAITING.items():
        if any(name in (known, known.rpartition(".")[2]) for known in names):
            return reason
    return None
