"""Faults in the prefill with products of fp8. They need a ptxas that builds it (13.3)."""

from tests.mutation.mutant import FP8_PRODUCTS, K, gpu

FP8_FAULTS = (
    gpu(
        "wgmma fp8 products: lse keeps the headroom of the weights",
        f"{K}/prefill_sm90/fp8/kernel.cuh",
        "make_float4(shift[0] * unit, shift[1] * unit,",
        "make_float4((shift[0] - kHeadroom) * unit, (shift[1] - kHeadroom) * unit,",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: a row begins with a base of its own",
        f"{K}/prefill_sm90/fp8/kernel.cuh",
        "shift[0] = shift[1] = -minus_infinity();",
        "shift[0] = shift[1] = 0.f;",
        FP8_PRODUCTS,
    ),
)
