"""The reference of products: sums in float64, by parts if scales vary along k, then the epilogue's program."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opfacade.backends.reference._matmul_groups import run_groups
from opfacade.backends.reference._matmul_weights import Stored
from opfacade.backends.reference._matmul_weights import sums as sums_of_codes
from opfacade.backends.reference.declared import READS_INDICES, Pairs, reference
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.operands import valid_count
from opfacade.plans._matmul.program import epilogue
from opfacade.plans._matmul.scaling import Scaling
from opfacade.plans._matmul.values import cut, leaves_of, shift
from opfacade.plans.matmul import GroupedMatmulArgs, GroupedMatmulDescriptor, MatmulArgs, MatmulDescriptor
from opfacade.programs.evaluate import Evaluation, Values, stored
from opfacade.programs.guarantees import in_f64

if TYPE_CHECKING:
    from torch import Tensor


def _run(descriptor: MatmulDescriptor, args: MatmulArgs) -> None:
    import torch

    rows = None if args.num_valid is None else valid_count(args.num_valid, descriptor.total_num_rows)
    given: Any = cut(descriptor, args, rows)
    x = given.x.double() if descriptor.x_layout == "mk" else given.x.double().transpose(-1, -2)
    sums, scaling = _sums(descriptor, x, given), descriptor.scaling
    if scaling is not None and scaling.x_zero:
        sums = sums - shift(scaling.kind, given.x_zero, given.weight_sum)
    if descriptor.result == "i32":
        given.out.copy_(sums)
        return
    leaves = leaves_of(descriptor, given)
    for part in range(descriptor.columns):
        leaves["stage", (part, "value")] = sums[..., part :: descriptor.columns]
    found = Evaluation(Values(leaves, x.device), torch.float64)(epilogue(descriptor))
    given.out.copy_(stored(found.expand(given.out.shape), descriptor.result))


def _sums(descriptor: MatmulDescriptor, x: Tensor, args: MatmulArgs) -> Tensor:
    """The sums [.., rows, n] in f64."""
    if descriptor.weight_format is not None:
        tensors = (args.weight, args.weight_scale, args.weight_zero, args.weight_global, args.weight_groups)
        return sums_of_codes(descriptor.weight_format, Stored(*tensors), x, descriptor.dtype)  # type: ignore[arg-type]
    w, scaling = args.weight.double(), descriptor.scaling  # type: ignore[union-attr]
    w = w if descriptor.weight_layout == "kn" else w.transpose(-1, -2)
    return x @ w if scaling is None or not scaling.in_k else _by_parts(scaling, x, w, args)


def _run_groups(descriptor: GroupedMatmulDescriptor, args: GroupedMatmulArgs) -> None:
    one = _single(descriptor)
    run_groups(descriptor, args, lambda tensors: _run(one, MatmulArgs(**tensors)))


def _single(d: GroupedMatmulDescriptor) -> MatmulDescriptor:
    """The product of one group, of any number of rows."""
    fields = {name: getattr(d, name) for name in set(type(d).model_fields) & set(MatmulDescriptor.model_fields)}
    scaling = d.scaling
    if scaling is not None and scaling.x_scale_layout == "column_padded4":
        scaling = scaling.model_copy(update={"x_scale_layout": "column"})
    return MatmulDescriptor(**{**fields, "op": "matmul", "scaling": scaling})


def _by_parts(scaling: Scaling, x: Tensor, w: Tensor, args: MatmulArgs) -> Tensor:
    """sum over parts of k of (x * w of the part) * x_scale * weight_scale."""
    import torch

    k, n = w.shape[-2:]
    x_scale, w_scale = args.x_scale.double(), args.weight_scale.double()  # type: ignore[union-attr]
    if scaling.x_scale_layout != "row":
        x_scale = x_scale.transpose(-1, -2)
    found = x.new_zeros((*x.shape[:-1], n))
    of_n, of_k = scaling.block_offset
    columns = torch.arange(n, device=x.device)
    for first, stop in _parts(scaling, k):
        sums = x[..., first:stop] @ w[..., first:stop, :]
        own = (
            w_scale[..., first // scaling.part]
            if scaling.kind == "mx32"
            else w_scale[..., (columns + of_n) // scaling.part, (first + of_k) // scaling.part]
        )
        found += sums * x_scale[..., : x.shape[-2], first // scaling.part, None] * own[..., None, :]
    return found


def _parts(scaling: Scaling, k: int) -> list[tuple[int, int]]:
    """Ranges of k with one scale of x and one of weight."""
    ends = {0, k, *range(0, k, scaling.part), *range(scaling.part - scaling.block_offset[1], k, scaling.part)}
    marks = sorted(end for end in ends if 0 <= end <= k)
    return list(pairwise(marks))


def _promise(descriptor: MatmulDescriptor | GroupedMatmulDescriptor) -> PrecisionGuarantee:
    """The guarantee: sums in float64, with one rounding per term, and the epilogue in float64."""
    program = descriptor.program()
    if not program:
        return PrecisionGuarantee(math_precision="f64", accumulator="f64", error_model=ErrorModel(id="exact"))
    constants = dict(in_f64(program.values(), "matmul").constants) | {"u_acc": 2.0**-53, "k_step": 1.0}
    model = ErrorModel(id="matmul-f64", constants=tuple(sorted(constants.items())))
    return PrecisionGuarantee(math_precision="f64", accumulator="f64", error_model=model)


def _promise_of_one(descriptor: MatmulDescriptor) -> PrecisionGuarantee:
    """The host reads the table of groups of k."""
    weight = descriptor.weight_format
    found = _promise(descriptor)
    if weight is None or weight.num_groups is None:
        return found
    return found.model_copy(update={"conditions": (READS_INDICES,)}).revalidated()


def _promise_of_groups(descriptor: GroupedMatmulDescriptor) -> PrecisionGuarantee:
    return _promise(descriptor).model_copy(update={"conditions": (READS_INDICES,)}).revalidated()


def _dtypes(descriptor: MatmulDescriptor | GroupedMatmulDescriptor) -> Pairs:
    return (("out", descriptor.result), ("x", descriptor.dtype))


def _facts(descriptor: MatmulDescriptor | GroupedMatmulDescriptor) -> Pairs:
    """Fields that determine the bits of a result, besides the dtypes."""
    flags = ("accumulate", "add", "bias", "gated")
    found: dict[str, Any] = {name: True for name in flags if getattr(descriptor, name)}
    found |= {"activation": descriptor.activation} if descriptor.activation != "none" else {}
    found |= {"scale": descriptor.scaling.kind} if descriptor.scaling is not None else {}
    weight = descriptor.weight_format
    found |= {"weight": weight.dtype, "dequantise": weight.dequantise, "zero": weight.zero} if weight is not None else {}
    found |= {"x_zero": True} if descriptor.scaling is not None and descriptor.scaling.x_zero else {}
    return tuple(sorted(found.items()))


def _facts_of_groups(descriptor: GroupedMatmulDescriptor) -> Pairs:
    flags = {name: True for name in ("gather", "zero_tail") if getattr(descriptor, name)}
    return tuple(sorted({**dict(_facts(descriptor)), **flags, "groups": descriptor.layout}.items()))


CANDIDATES = (
    reference(MatmulDescriptor, _promise_of_one, _dtypes, _run, _facts),
    reference(GroupedMatmulDescriptor, _promise_of_groups, _dtypes, _run_groups, _facts_of_groups),
)
