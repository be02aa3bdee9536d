"""Norms with modulation and gates, and norms of heads, against torch's in f64."""

import itertools

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import DescriptorError
from opfacade.recipes import gated_add, gated_add_norm, head_norm, modulated_norm, shaped
from opfacade.testing import numerics
from tests import emulator
from tests.recipes import opinfo

B, S, D = 2, 5, 24


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape) * 7)) * 2 + 0.3


X, R = drawn(B, S, D), drawn(B, S, D, seed=1)
OF_BATCH = {"scale": drawn(B, D, seed=2), "shift": drawn(B, D, seed=3), "gate": drawn(B, D, seed=4)}
OF_ELEMENT = {name: drawn(B, S, D, seed=5 + i) for i, name in enumerate(OF_BATCH)}


def ran(made, subject=None, **tensors):
    args = opinfo.bundle(made, tensors)
    run = subject.run if subject else Plan.select(made, Preference(backend="reference")).run
    run(args)
    if subject:
        assert numerics.check(made, args, subject.plan.sku).worst <= 1
    return made.written(args)


def wide(given):
    return {name: one.double().view(B, 1, D) if one.dim() == 2 else one.double() for name, one in given.items()}


def normed(x, kind, weight=None, bias=None, eps=1e-6):
    x = x.double()
    if kind == "layer":
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps) + (0 if bias is None else bias)


@pytest.mark.parametrize(
    ("norm", "given", "affine"), list(itertools.product(("layer", "rms"), (OF_BATCH, OF_ELEMENT), (False, True)))
)
def test_a_norm_is_scaled_by_one_and_more_and_shifted(norm, given, affine):
    more = {"weight": drawn(D, seed=9), "bias": drawn(D, seed=10)} if affine else {}
    operands = {"scale": given["scale"], "shift": given["shift"], **more}
    (got,) = ran(modulated_norm(X, **operands, norm=norm), input=X, **operands)
    want = normed(X, norm, *(one.double() for one in more.values())) * (1 + wide(given)["scale"]) + wide(given)["shift"]
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("given", [OF_BATCH, OF_ELEMENT], ids=["batch", "element"])
def test_a_gate_comes_before_the_residual_and_the_norm_behind_it(given):
    stream = R.double() + wide(given)["gate"] * X.double()
    (added,) = ran(gated_add(X, R, given["gate"]), input=X, residual=R, gate=given["gate"])
    torch.testing.assert_close(added.double(), stream, rtol=1e-6, atol=1e-6)
    made = gated_add_norm(X, R, given["gate"], given["scale"], given["shift"], norm="rms")
    out, kept = ran(made, input=X, residual=R, **given)
    torch.testing.assert_close(kept.double(), stream, rtol=1e-6, atol=1e-6)
    want = normed(stream, "rms") * (1 + wide(given)["scale"]) + wide(given)["shift"]
    torch.testing.assert_close(out.double(), want, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("weight", [None, drawn(D, seed=11), drawn(S, D, seed=12)], ids=["none", "one", "each"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_norm_of_heads_has_one_weight_or_one_for_each_head(weight, offset):
    more = {} if weight is None else {"weight": weight}
    (got,) = ran(head_norm(X, **more, offset=offset), input=X, **more)
    want = normed(X, "rms") * (1 if weight is None else weight.double() + offset)
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-6)


@emulator.needed
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_these_norms_keep_their_bounds(dtype):
    x, r = X.to(dtype), R.to(dtype)
    given = {name: one.to(dtype) for name, one in OF_BATCH.items()}
    made = gated_add_norm(x, r, given["gate"], given["scale"], given["shift"])
    ran(made, emulator.subject(made), input=x, residual=r, **given)
    heads = head_norm(x, weight=drawn(S, D).to(dtype), offset=1.0)
    ran(heads, emulator.subject(heads), input=x, weight=drawn(S, D).to(dtype))


def test_each_has_a_kernel_of_one_pass():
    wide, of_batch = shaped(4, 4096, 3072, dtype="bf16"), shaped(4, 3072, dtype="bf16")
    for made in (
        modulated_norm(wide, of_batch, of_batch), gated_add(wide, wide, of_batch),
        gated_add_norm(wide, wide, of_batch, of_batch, of_batch), head_norm(shaped(9, 8, 128, dtype="f16")),
    ):  # fmt: skip
        assert Plan.select(made, Preference(backend="cuda"), Target.parse("sm_90a")).sku.backend == "cuda"


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: modulated_norm(X, shaped(B, 7, dtype="f32"), OF_BATCH["shift"]), "scale"),
        (lambda: modulated_norm(X, **{k: OF_BATCH[k] for k in ("scale", "shift")}, norm="batch"), "norm"),
        (lambda: gated_add(X, shaped(B, D, dtype="f32"), OF_BATCH["gate"]), "residual"),
        (lambda: head_norm(X, weight=shaped(7, dtype="f32")), "weight"),
        (lambda: gated_add(X, R, shaped(B, D, dtype="bf16")), "gate"),
    ],
)
def test_operands_of_other_shapes_are_refused(make, argument):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.issues[0].argument == argument
