"""Mixture-of-experts layers computed by loops over rows and slots in f64, and the tensors of their calls."""

import math

import torch
from torch.nn.functional import gelu, silu

from opfacade import Plan
from opfacade.core.descriptor import operands_of
from opfacade.plans.moe import EXAMPLES, FusedMoeArgs

LAYERS = [d for d in EXAMPLES if d.op == "fused_moe"]
ACTIVATIONS = {"silu": silu, "relu2": lambda x: x.clamp(min=0) ** 2, "gelu": gelu, "identity": lambda x: x}
ACTIVATIONS["gelu_tanh"] = lambda x: gelu(x, approximate="tanh")


def drawn(d, seed=0):
    """The tensors of a call, with values of ordinary magnitude."""
    torch.manual_seed(seed)
    made = {}
    for name, spec in operands_of(d).items():
        shape = [dim.size for dim in spec.shape]
        values = torch.randn(shape) * (1 if name in ("x", "logits", "correction") else 0.5)
        made[name] = values.to(
            {"f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "f8_e4m3": torch.float8_e4m3fn}.get(
                spec.dtype, torch.float32
            )
        )
        if spec.dtype == "u8":
            made[name] = torch.randint(0, 16 if name.endswith("_zero") else 256, shape, dtype=torch.uint8)
        elif spec.dtype == "f8_e8m0":
            made[name] = torch.randint(-3, 0, shape).float().exp2().to(torch.float8_e8m0fnu)
        elif name.endswith("_scale"):
            made[name] = (made[name].float().abs() + 0.25).to(made[name].dtype)
    if d.router is None:
        made["ids"] = torch.rand(d.total_num_rows, d.experts).argsort(1)[:, : d.top_k].int()
        made["weights"] = made["weights"].abs()
    made["out"].fill_(math.nan)
    return FusedMoeArgs(**made)


def ran(d, args):
    Plan.select(d).run(args)
    return args


def one_expert(d, x, up, down, up_bias=None, down_bias=None, eight=False):
    """One row through one expert, in f64. With `eight`, the result of the activation is quantised to 8 bits."""
    up, down = (w.double() if d.weight_layout == "nk" else w.double().T for w in (up, down))
    both = up @ x + (0 if up_bias is None else up_bias.double())
    half = len(both) // 2
    if not d.gated:
        gate, ups = both, None
    elif d.halves == "interleaved":
        gate, ups = both[0::2], both[1::2]
    else:
        gate, ups = (both[:half], both[half:]) if d.halves == "gate_up" else (both[half:], both[:half])
    if d.limit is not None:
        gate, ups = gate.clamp(max=d.limit), ups if ups is None else ups.clamp(-d.limit, d.limit)
    h = ACTIVATIONS[d.activation](gate) if d.alpha is None else gate / (1 + (-d.alpha * gate).exp())
    h = h if ups is None else h * (ups + d.beta)
    h = in_8_bits(d, h) if eight else h
    return down @ h + (0 if down_bias is None else down_bias.double())


def in_8_bits(d, x):
    """The numbers that a row represents after its quantisation to 8 bits."""
    parts = x.float().reshape(-1, 128 if d.scaling == "block" else len(x))
    scale = parts.abs().amax(1, keepdim=True).clamp(min=1e-10) / 448
    return ((parts / scale).to(torch.float8_e4m3fn).double() * scale.double()).flatten()


def weight_of(d, args, name, expert):
    """A weight multiplied by its scales, in f64."""
    if d.weight_format is not None:
        found = number_of(
            d.weight_format, *(_of_expert(args, f"{name}{part}", expert) for part in ("", "_scale", "_zero", "_global"))
        )
        return found.to(args.x.dtype).double() if d.weight_format.dequantise == "rounded" else found
    weight = getattr(args, name)[expert].double()
    if d.scaling is None:
        return weight
    scale = getattr(args, f"{name}_scale")[expert].double()
    rows, columns = (1, weight.shape[1]) if d.scaling == "token" else (128, 128)
    scale = scale[:, None] if d.scaling == "token" else scale
    return weight * torch.kron(scale, torch.ones(rows, columns).double())[: weight.shape[0], : weight.shape[1]]


def _of_expert(args, name, expert):
    operand = getattr(args, name)
    return None if operand is None else operand[expert]


def number_of(form, codes, scale, zero, whole):
    """The numbers that 4-bit codes of a weight represent, in f64. zero and whole are the zero points and the global scale, or
    None."""
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()
    pairs = torch.stack([codes % 16, codes // 16], -1).flatten(1).long()
    found = torch.where(pairs > 7, -sizes[pairs % 8], sizes[pairs % 8]) if form.dtype == "e2m1" else pairs.double()
    if zero is not None:
        found = found - zero.double().repeat_interleave(form.group, 1)
    return found * scale.double().repeat_interleave(form.group, 1) * (1 if whole is None else whole.double())


def by_hand(d, args):
    """out in f64, computed from the ids and weights in args."""
    out = torch.zeros(d.total_num_rows, d.hidden).double()
    ids, weights = (args.ids, args.weights) if d.router is None else (args.chosen_ids, args.chosen_weights)
    for r in range(d.total_num_rows):
        x = args.x[r].double()
        for slot in range(d.top_k):
            e, w = int(ids[r, slot]) - d.first_expert, weights[r, slot].double()
            if not 0 <= e < d.local:
                continue
            biases = (args.up_bias[e], args.down_bias[e]) if d.bias else ()
            given = x * w if d.weights_at == "input" else x
            given = given if d.scaling is None else in_8_bits(d, given)
            one = one_expert(
                d, given, weight_of(d, args, "up", e), weight_of(d, args, "down", e), *biases, eight=d.scaling is not None
            )
            out[r] += one if d.weights_at == "input" else w * one
        if d.shared_width:
            out[r] += one_expert(d, x, args.shared_up, args.shared_down)
        if d.add:
            out[r] += args.add[r].double()
    return out


SIZES = {"total_num_rows": 7, "experts": 5, "top_k": 2, "hidden": 13, "width": 9, "dtype": "f32"}
