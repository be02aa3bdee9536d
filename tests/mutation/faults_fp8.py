"""Faults in the prefill with products of fp8. They need a ptxas that builds it (13.3)."""

from tests.mutation.mutant import FP8_PRODUCTS, C, K, cpu, gpu

FP8_FAULTS = (
    cpu(
        "factors: a graph that is captured shares the factor of other calls",
        "opfacade/core/device_tensors.py",
        "        if captured and not (",
        "        if False and not (",
        "tests/families/attention/test_number_scales.py -k captured",
    ),
    cpu(
        "factors: a number of no sign is a factor",
        "opfacade/plans/_attention/number_scales.py",
        "not 0 < value",
        "not 0 <= value",
        "tests/families/attention/test_number_scales.py -k no_factor",
    ),
    cpu(
        "prefill of fp8 products: all heads take the first factor of q",
        f"{K}/prefill_sm90/fp8/kernel.cuh",
        "q_scale[work.head * q_scale_stride]",
        "q_scale[0]",
        "tests/emulator/test_emulated_fp8.py -k query-of",
    ),
    gpu(
        "wgmma fp8 products: the bytes of two keys trade places in V",
        f"{C}/transpose_bytes.cuh",
        "pairs[2 * c + 1], 0x6420);",
        "pairs[2 * c + 1], 0x6240);",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: the factor of q is left out",
        f"{K}/prefill_sm90/fp8/kernel.cuh",
        "(q_scale == nullptr ? 1.f : q_scale[work.head * q_scale_stride])",
        "1.f",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: lse keeps the headroom of the weights",
        f"{K}/prefill_sm90/fp8/kernel.cuh",
        "make_float4(shift[0] * unit, shift[1] * unit,",
        "make_float4((shift[0] - kHeadroom) * unit, (shift[1] - kHeadroom) * unit,",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: weights may grow until they saturate",
        f"{K}/lazy_softmax_fp8.cuh",
        "constexpr float kLargestWeight = 448.f;",
        "constexpr float kLargestWeight = 1e6f;",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: a row begins with a base of its own",
        f"{K}/prefill_sm90/fp8/kernel.cuh",
        "shift[0] = shift[1] = -minus_infinity();",
        "shift[0] = shift[1] = 0.f;",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: the first masked tile after others is taken for one of them",
        f"{K}/prefill_sm90/work.cuh",
        "below) / tile + 1;",
        "below) / tile + 2;",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: the second half of the columns is not added",
        f"{K}/prefill_sm90/fp8/math.cuh",
        "i < C::kHeadDim / 2; ++i) rows.o[i] += t[i];",
        "i < C::kHeadDim / 4; ++i) rows.o[i] += t[i];",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: slots outside the range keep what lay there",
        f"{K}/prefill_sm90/fp8/transpose.cuh",
        "w[i] &= kept[i / 2], found",
        "found",
        FP8_PRODUCTS,
    ),
    gpu(
        "wgmma fp8 products: a half of V is transposed before it has come",
        f"{K}/prefill_sm90/fp8/transpose.cuh",
        "      mbarrier_wait(smem_address(&smem.raw_v.full[raw_v.stage]), raw_v.parity);\n",
        "",
        FP8_PRODUCTS,
    ),
)
