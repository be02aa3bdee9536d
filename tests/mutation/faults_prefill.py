"""Faults in the kernels of prefill."""

from tests.mutation.mutant import (
    CUT_LINE,
    FP8_PREFILL,
    PREFILL,
    UNEVEN,
    VARIED,
    K,
    cpu,
    gpu,
)

PREFILL_FAULTS = (
    gpu(
        "variants: the parameters of keys are those of the other tile",
        f"{K}/prefill/load.cuh",
        "key_table(smem, parity), key, page",
        "key_table(smem, parity ^ 1), key, page",
        VARIED,
    ),
    gpu(
        "prefill variants: a line over the keys is that of their tile",
        "csrc/attention/variant.jinja",
        "float(key.step), ",
        "0.f, ",
        "prefill-auto-alibi",  # only mma_tile: wgmma_tile folds the linear term into the exponents
    ),
    gpu(
        "prefill: P is scaled by 0.996 before the product",
        f"{K}/prefill/math.cuh",
        "a[b][0] = T::pack(s[b][2 * step][0], s[b][2 * step][1]);",
        "a[b][0] = T::pack(s[b][2 * step][0] * 0.996f, s[b][2 * step][1]);",
        PREFILL,
    ),
    gpu(
        "fp8 prefill: the factor of V is left out",
        f"{K}/prefill/finish.cuh",
        "p.v_scale[kv_head * p.kv_scale_stride]",
        "1.f",
        FP8_PREFILL,
    ),
    gpu(
        "wgmma prefill: the sum is not rescaled",
        f"{K}/lazy_softmax.cuh",
        "fmaf(sum[half], factor[half], more[half])",
        "sum[half] + more[half]",
        PREFILL,
    ),
    gpu(
        "wgmma prefill: two blocks are dealt the same work",
        f"{K}/prefill_sm90/scheduler.cuh",
        "? ctas - 1 - cta : cta);",
        "? cta / 2 : cta);",
        "",
        tests="tests/families/attention/test_wgmma_schedule.py",
    ),
    gpu(
        "wgmma prefill, uneven: scores leave out what a key has more than a value",
        f"{K}/prefill_sm90/math.cuh",
        "panel < WgmmaShared<C>::kPanels; ++panel) {\n    const Descriptors a",
        "panel < C::kHeadDimVo / 64; ++panel) {\n    const Descriptors a",
        UNEVEN,
    ),
    gpu(
        "wgmma prefill, uneven: partial rows of o lie as far apart as those of q",
        f"{K}/prefill_sm90/output.cuh",
        "p.partial_o + at * C::kHeadDimVo",
        "p.partial_o + at * C::kHeadDim",
        UNEVEN,
    ),
    cpu(
        "cut tiles: a tile that a block passes over takes the place of the part that it has made",
        f"{K}/prefill_sm90/scheduler.cuh",
        "    if constexpr (kCutsByLengths<C>) work.split = 0;",
        "    if constexpr (kCutsByLengths<C>) work.split = work.split + 0;",
        CUT_LINE,
    ),
    cpu(
        "cut tiles: the last part of a tile is lost",
        f"{K}/prefill_sm90/cut.cuh",
        "return (at + keys - 1) / share;",
        "return (at + keys - 1) / share - ((at + keys - 1) / share > first());",
        CUT_LINE,
    ),
)
