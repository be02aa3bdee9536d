"""The whole layer in one plan: routing, the two products of each expert, and the sum of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.core.operands import TensorSpec
from opfacade.plan import Plan
from opfacade.plans._composites.steps import Step
from opfacade.plans._moe import layer
from opfacade.plans._moe.layer_fields import FusedMoeArgs, LayerFields
from opfacade.plans._moe.router import Router
from opfacade.plans._weights.weight import Weight
from opfacade.plans._weights.weight import wrong_values as wrong_weights

if TYPE_CHECKING:
    from torch import Tensor


class FusedMoeDescriptor(LayerFields):
    """out[r] = sum over slots of weights[r, slot] * expert ids[r, slot] of x[r], in the order of slots, + shared expert + add.

    An expert is down @ act(up @ x + up_bias) + down_bias. With gates, act is activation(gate) * (up + beta), and `halves` is
    the order of gates and ups in the rows of `up`; without gates, act is activation(gate). limit: clamps the gate to at most
    `limit` and up to [-limit, limit]; alpha: silu is gate * sigmoid(alpha * gate). weights_at "input": x is multiplied by the
    weight of a choice and rounded before the expert, and the results are added without weights. The shared expert has no
    biases. router: chosen_ids and chosen_weights are computed from logits, as by RouteDescriptor; null: ids and weights are
    inputs. Choices of experts that are not on this rank are skipped. first_expert, num_local: as in MoeSortDescriptor. Tensors
    between steps are stored in dtype: the results of `up` (unless its product applies the activation), of the activation, and
    of `down`, to which `add` is added first if `down` is that of the shared expert. Products add as their kernels do, and the
    sum over slots is f32. The workspace contains all these tensors.
    scaling: weights of experts are in f8_e4m3, with scales; rows of x, and the results of the activation, are quantised to
    f8_e4m3 with a scale for each row ("token") or each 128 elements of a row ("block") before a product. The shared expert
    stays in dtype. With "block", hidden and width are multiples of 128.
    weight_format: `up` and `down` have codes of few bits, as in matmul; rows of x stay in dtype, and so does the shared expert.
    Raises DescriptorError for fields that contradict each other.
    """

    def operands(self) -> dict[str, TensorSpec]:
        return layer.operands(self)

    def steps(self) -> tuple[Step, ...]:
        """The plans of the layer, in order."""
        return layer.steps(self)

    def wrong_values(self, name: str, args: FusedMoeArgs) -> tuple[Tensor, str] | None:
        found = super().wrong_values(name, args)
        return found if self.weight_format is None else wrong_weights(name, getattr(args, name), found)


class FusedMoePlan(Plan[FusedMoeArgs]):
    """A layer of a mixture of experts."""


EXAMPLES = (
    FusedMoeDescriptor(
        total_num_rows=16, experts=16, top_k=4, hidden=64, width=32, dtype="bf16",
        router=Router(dtype="f32", renormalise=True),
    ),
    FusedMoeDescriptor(
        total_num_rows=7, experts=6, top_k=2, hidden=33, width=21, dtype="bf16", halves="interleaved", limit=7.0, alpha=1.702,
        beta=1.0, weight_layout="kn", bias=True, bias_dtype="f32",
        router=Router(dtype="bf16", score="softmax_chosen", bias=True),
    ),
    FusedMoeDescriptor(
        total_num_rows=9, experts=16, top_k=3, hidden=40, width=24, dtype="f16", shared_width=31, first_expert=2, num_local=9,
        router=Router(
            dtype="f32", score="sigmoid", correction=True, groups=4, top_groups=2, group_score="top2", renormalise=True,
            scale=2.5,
        ),
    ),
    FusedMoeDescriptor(
        total_num_rows=11, experts=5, top_k=1, hidden=24, width=16, dtype="bf16", weights_at="input", shared_width=16,
        halves="up_gate", add=True,
    ),
    FusedMoeDescriptor(
        total_num_rows=8, experts=4, top_k=2, hidden=17, width=20, dtype="f32", activation="relu2", gated=False, bias=True
    ),
    FusedMoeDescriptor(total_num_rows=5, experts=3, top_k=2, hidden=16, width=8, dtype="f16", halves="interleaved"),
    FusedMoeDescriptor(total_num_rows=6, experts=3, top_k=2, hidden=16, width=9, dtype="f32", beta=0.5, limit=3.0, alpha=1.3),
    FusedMoeDescriptor(total_num_rows=7, experts=5, top_k=2, hidden=256, width=128, dtype="bf16", scaling="block"),
    FusedMoeDescriptor(
        total_num_rows=9, experts=4, top_k=2, hidden=40, width=24, dtype="f16", scaling="token", halves="interleaved",
        bias=True, weights_at="input", shared_width=16, router=Router(dtype="f32"),
    ),
    FusedMoeDescriptor(
        total_num_rows=6, experts=5, top_k=2, hidden=96, width=64, dtype="bf16", halves="interleaved", limit=7.0, alpha=1.702,
        beta=1.0, bias=True, weight_format=Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0"),
    ),
    FusedMoeDescriptor(
        total_num_rows=5, experts=3, top_k=2, hidden=64, width=32, dtype="bf16",
        weight_format=Weight(dtype="uint4", group=32, zero="int", dequantise="rounded"),
    ),
    FusedMoeDescriptor(
        total_num_rows=5, experts=3, top_k=2, hidden=64, width=32, dtype="bf16",
        weight_format=Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True),
    ),
)  # fmt: skip
