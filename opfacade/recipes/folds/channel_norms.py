"""Instance norm, batch norm, and norms over neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import apply, coord
from opfacade.recipes._draft import Draft, zero
from opfacade.recipes._folding import FoldDraft
from opfacade.recipes._pointwise import floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.folds.layer_norms import centered, one_dtype, scaled

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Scalar


STATISTICS = (
    "only with training; running_mean and running_var are never updated; "
    "out1 is the mean, out2 the reciprocal standard deviation"
)


@recipe("nn.functional.instance_norm", "running_mean and running_var are read if use_input_stats is False, and never updated")
def instance_norm(
    input: Shaped, running_mean: Shaped | None = None, running_var: Shaped | None = None, weight: Shaped | None = None,
    bias: Shaped | None = None,
    use_input_stats: bool = True, momentum: Scalar | None = 0.1, eps: Scalar = 1e-5,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return _known(input, {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}, eps)
    return _channels(input, range(2, input.rank), {"weight": weight, "bias": bias}, eps)


@recipe("nn.functional.batch_norm", "running_mean and running_var are never updated; a map if training is False")
def batch_norm(
    input: Shaped, running_mean: Shaped | None, running_var: Shaped | None, weight: Shaped | None = None,
    bias: Shaped | None = None, training: bool = False,
    momentum: Scalar | None = 0.1, eps: Scalar = 1e-5,
) -> Any:  # fmt: skip
    if not training:
        return _known(input, {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}, eps)
    return _channels(input, _beside_channels(input), {"weight": weight, "bias": bias}, eps)


@recipe("native_batch_norm", STATISTICS)
def native_batch_norm(
    input: Shaped,
    weight: Shaped | None,
    bias: Shaped | None,
    running_mean: Shaped | None,
    running_var: Shaped | None,
    training: bool,
    momentum: Scalar | None,
    eps: Scalar,
) -> FoldDescriptor:
    if not training:
        refuse("training", "True", training, "Use recipes.batch_norm, which returns only the normalised tensor.")
    return _channels(input, _beside_channels(input), {"weight": weight, "bias": bias}, eps, with_statistics=True)


@recipe("_native_batch_norm_legit", STATISTICS)
def native_batch_norm_legit(input: Shaped, weight: Shaped | None, bias: Shaped | None, *rest: object) -> FoldDescriptor:
    """rest: optionally running_mean and running_var, followed by training, momentum and eps."""
    given = rest if len(rest) == 5 else (None, None, *rest)
    if len(given) != 5:
        refuse("rest", "training, momentum and eps, optionally preceded by running_mean and running_var", len(rest))
    found: FoldDescriptor = native_batch_norm.make(input, weight, bias, *given)
    return found


def _beside_channels(input: Shaped) -> list[int]:
    return [axis for axis in range(input.rank) if axis != 1]


def _channels(
    input: Shaped, folded: Sequence[int], given: dict[str, Any], eps: Scalar, with_statistics: bool = False
) -> FoldDescriptor:
    """Normalises with statistics of the call; weights are per channel."""
    dtype = one_dtype(input=input, **given)
    if input.rank < 2 or not folded:
        refuse("input", "[N, C] or [N, C, ...], or for instance norm at least [N, C, L]", input.shape)
    draft = FoldDraft(input.shape, folded)
    x, *of_channel = centered(draft, draft.element("input", input), eps)
    return draft.elements(scaled(draft, x, (1,), given), dtype=dtype, rows=of_channel if with_statistics else ())


def _known(input: Shaped, given: dict[str, Any], eps: Any) -> Any:
    """Normalises with the given statistics, as a map."""
    dtype = one_dtype(input=input, **given)
    if input.rank < 2:
        refuse("input", "[N, C] or [N, C, ...]", input.shape)
    draft, channels = Draft(input.shape), []
    x = floats(draft.element("input", input))
    for name in ("running_mean", "running_var"):
        if not isinstance(given[name], Shaped) or given[name].shape != (input.shape[1],):
            refuse(name, f"a tensor of shape [{input.shape[1]}]", given[name])
        channels.append(draft.along(name, given[name], (1,)))
    x = (x - channels[0]) * w.rsqrt(channels[1] + draft.number("eps", eps, x.type))
    return draft.map(scaled(draft, x, (1,), given), dtype=dtype)


@recipe("nn.functional.local_response_norm")
def local_response_norm(input: Shaped, size: int, alpha: Any = 1e-4, beta: Any = 0.75, k: Any = 1.0) -> FoldDescriptor:
    """x / (k + alpha * mean of squares of `size` neighbouring channels) ^ beta; channels outside the tensor count as 0."""
    if input.rank < 3 or size < 1:
        refuse("input", "[N, C, ...] with at least 3 axes, and a size of at least 1", (input.shape, size))
    draft = FoldDraft((*input.shape, size), (input.rank,))
    source, here = draft.source("input", input), draft.here(range(input.rank))
    near = [*here[:1], here[1] + coord(input.rank) - draft.number("before", size // 2, "i64"), *here[2:]]
    x = floats(source.at(near, zero(input.type)))
    numbers = {name: draft.number(name, value, x.type) for name, value in (("alpha", alpha), ("beta", beta), ("k", k))}
    mean = draft.join("sum", x * x) / apply(x.type, draft.count())
    found = source.at(here) / w.pow(numbers["k"] + numbers["alpha"] * mean, numbers["beta"])
    return draft.rows(found, dtype=input.dtype)
