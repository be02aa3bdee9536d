"""The reference's guarantee for attention, and the conversion of a descriptor to the scores of one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from opfacade.backends.reference.declared import READS_INDICES
from opfacade.core.candidate import Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.scoring import FINITE_LOGITS, LSE_BASE, Attention, transforms_scores, varied_facts

if TYPE_CHECKING:
    from torch import Tensor


class WithSinks(Protocol):
    @property
    def sinks(self) -> Tensor | None: ...


def declines(descriptor: Attention[Any], target: Target) -> Sequence[Reason]:
    return ()


def no_workspace(descriptor: Attention[Any], target: Target) -> int:
    return 0


def _error_model(wide: bool, transforms: bool) -> ErrorModel:
    """The guarantee: every operation in f32 (or f64), sums in any order; the dot product and P lose one roundoff per
    operation."""
    u = 2.0**-53 if wide else 2.0**-24
    facts = {
        "u_acc": u,
        "k_step": 1,
        "u_p": u,
        "eta_p": 2.0**-150,
        "exp": 4 * u,
        "tanh": 4 * u,
        "tile": 2.0**31,
        "lanes": 1,
        "split": 0,
    }
    facts |= {"function": 4 * u} if transforms else {}
    return ErrorModel(
        id="attention-f64" if wide else "attention-f32", constants=tuple(sorted((k, float(v)) for k, v in facts.items()))
    )


def _guarantee(wide: bool, transforms: bool) -> PrecisionGuarantee:
    return PrecisionGuarantee(
        math_precision="f64" if wide else "f32",
        accumulator="f64" if wide else "f32",
        error_model=_error_model(wide, transforms),
        conditions=(READS_INDICES, FINITE_LOGITS) if transforms else (READS_INDICES,),
    )


@cached_by_specialization
def sku(descriptor: Attention[Any], target: Target) -> KernelSku:
    transforms = transforms_scores(descriptor)
    return _make_sku(descriptor.op, target.arch, _dtypes(descriptor), _facts(descriptor), transforms)


def _dtypes(descriptor: Attention[Any]) -> tuple[tuple[str, str], ...]:
    return (("kv", descriptor.kv_dtype), ("o", descriptor.output_dtype), ("q", descriptor.query_dtype))


def _facts(descriptor: Attention[Any]) -> tuple[tuple[str, bool | str], ...]:
    """Facts that change the meaning of a result; defaults are omitted."""
    scales = {name: getattr(descriptor, name, "none") for name in ("kv_scale", "q_scale")}
    facts: dict[str, bool | str] = {name: scale for name, scale in scales.items() if scale != "none"}
    facts |= {"sinks": True} if descriptor.sinks else {}
    return tuple(sorted((facts | varied_facts(descriptor)).items()))


@lru_cache(maxsize=256)
def _make_sku(
    op: str, arch: str, dtypes: tuple[tuple[str, str], ...], facts: tuple[tuple[str, bool | str], ...], transforms: bool
) -> KernelSku:
    # One Python function serves all problems: only the dtypes determine the guarantee.
    return KernelSku(
        category=Attention.category,
        op=op,
        backend="reference",
        arch=arch,
        impl="torch",
        revision=1,
        dtypes=dtypes,
        layout="strided",
        spec=tuple(sorted((dict(facts) | LSE_BASE).items())),
        precision_guarantee=_guarantee(dict(dtypes)["q"] == "f32", transforms),
    )


def scoring(descriptor: Attention[Any], args: WithSinks, causal: bool) -> Any:
    from opfacade.backends.reference.attention.softmax import Scoring

    scales = (getattr(args, "k_scale", None), getattr(args, "v_scale", None), getattr(args, "q_scale", None))
    return Scoring(descriptor.scale, descriptor.logits_soft_cap, causal, descriptor.window_left, *scales, args.sinks)
