"""flash-attn's functions on opfacade's plans, for inference: `from opfacade.compat.flash_attn import flash_attn_func`.

Arguments have the names and order of flash-attn 2.8; further arguments of flash-attn 3 and its forks (`seqused_k`, `k_descale`,
`s_aux`, `num_splits` ...) are accepted by keyword. A `dropout_p` above 0, a gradient, and any argument without an equivalent
are refused by name before anything is written. Differences: for a row that sees no key, lse is -inf, while flash-attn 2 returns
+inf; the probabilities that `return_attn_probs=True` returns third are empty, as flash-attn's are without dropout;
`deterministic` has no effect, because it concerns the backward pass. On a CUDA device without a kernel for the problem, the
reference runs, with a FallbackWarning: `opfacade.compat.preferring(Preference(backend="cuda"))` refuses instead."""

from typing import Any

from opfacade.compat.flash_attn.dense import flash_attn_func as flash_attn_func
from opfacade.compat.flash_attn.kvcache import flash_attn_with_kvcache as flash_attn_with_kvcache
from opfacade.compat.flash_attn.packed import flash_attn_kvpacked_func as flash_attn_kvpacked_func
from opfacade.compat.flash_attn.packed import flash_attn_qkvpacked_func as flash_attn_qkvpacked_func
from opfacade.compat.flash_attn.packed import flash_attn_varlen_kvpacked_func as flash_attn_varlen_kvpacked_func
from opfacade.compat.flash_attn.packed import flash_attn_varlen_qkvpacked_func as flash_attn_varlen_qkvpacked_func
from opfacade.compat.flash_attn.varlen import flash_attn_varlen_func as flash_attn_varlen_func
from opfacade.compat.refusals import missing as _missing

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def __getattr__(name: str) -> Any:
    raise _missing(__name__, name, globals())
