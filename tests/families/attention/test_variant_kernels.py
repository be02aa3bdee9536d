"""CUDA kernels with variants, without a GPU: the generated code, its agreement with the rules of expressions, and the kernels
in the emulator."""

import ctypes
import re
import subprocess
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.attention import variant as attention_variant
from opfacade.errors import ArgumentError
from opfacade.jit import JitSpec, codegen, source_root
from opfacade.plans._attention.variant import Variant, equal, f32, kv_pos, log2, per_head, per_key, per_row, q_pos, score
from opfacade.plans._attention.variant_eval import exact, values_of
from opfacade.plans._attention.variant_examples import alibi, document_mask, sliding_window, soft_cap
from opfacade.select.selection import survey
from opfacade.testing import inputs, matrix, numerics
from opfacade.testing.families.attention import structural
from opfacade.testing.families.attention.problems import VARIANTS
from opfacade.testing.families.attention.requests import changed
from tests import emulator
from tests.plans.test_variant import EVERYWHERE, KV_HEADS, KV_LEN, Q_LEN, place_and_stacks, spread
from tests.support import assert_guarantee as holding
from tests.support import expressions

SM_90A = Target.parse("sm_90a")
PLAIN = matrix.matrix()["ragged-off-causal"]


def plan_of(descriptor, impl="mma_tile"):
    others = tuple({"mma_tile", "wgmma_tile"} - {impl})
    return Plan.select(descriptor, Preference(backend="cuda", forbid=others), SM_90A)


def rendered(descriptor, impl="mma_tile"):
    return codegen.render(plan_of(descriptor, impl).jit_spec)


# Generated code.

TOKEN = re.compile(
    r"\s|opfacade::(Exact|Fused)::[a-z0-9]+_\(|int32_t\(-?\d+ll\)|\(-?0x[01]\.[0-9a-f]+p[+-]\d+f\)|true|false|score|query|fmaf\(|float\(|[(),;+*-]"
    r"|key\.(kv_pos\(\)|base|step)|key\.param\[\d\]|row\.((head|row)_param\[\d\]|q_pos|q_len|kv_len|kv_head|head)"
)


@settings(max_examples=60, deadline=None)
@given(expressions.variants())
def test_generated_code_contains_only_known_identifiers_and_exact_literals(variant):
    text = rendered(changed(PLAIN, variant=variant, logits_soft_cap=0.0)).device
    bodies = re.findall(r"^    return (.*)$", text.partition("struct Config")[0], re.MULTILINE)
    assert len(bodies) == len(variant.parts())
    for body in bodies:
        assert TOKEN.sub("", body) == "", TOKEN.sub("", body)


def test_names_of_parameters_are_not_in_the_generated_code():
    one, other = (Variant(logits=score * per_head(name), mask=per_row("a" + name) < 3) for name in ("system", "x"))
    texts = {rendered(changed(PLAIN, variant=v)).device for v in (one, other)}
    assert len(texts) == 1
    assert "system" not in texts.pop()


@pytest.mark.parametrize("kind", ["prefill-off-causal", "prefill-fixed-odd-window-cap-block", "ragged-off-causal"])
def test_a_kernel_without_a_variant_contains_no_code_of_variants(kind):
    sources = rendered(matrix.matrix()[kind])
    assert not re.search(r"vari(ant|ed)|packed_mask|_params;", (sources.device + sources.binding).lower())


@pytest.mark.parametrize("value", [("a b",), (("x", "1;"),), (float("inf"),), (None,), ["a"]])
def test_a_nested_template_parameter_accepts_only_supported_values(value):
    with pytest.raises(ArgumentError, match="parameter t"):
        JitSpec.of("k", "a/b", "sm_80", t=value)
    assert JitSpec.of("k", "a/b", "sm_80", t=("a", (1, 2.0))) != JitSpec.of("k", "a/b", "sm_80", t=("a", (True, 2.0)))


def test_each_variant_and_mask_has_its_own_id_and_its_own_binary():
    kinds = [changed(PLAIN, variant=v, custom_mask=m) for v in (None, *VARIANTS) for m in (False, True)]
    plans = [plan_of(d) for d in kinds]
    assert (
        len({p.sku.id for p in plans})
        == len({codegen.source_digest(p.jit_spec, codegen.render(p.jit_spec)) for p in plans})
        == 12
    )
    bounds = {dict(p.precision_guarantee.error_model.constants).get("function") for p in plans}
    assert bounds == {None, 2.0**-21}


# Agreement with the rules of expressions.

HARNESS = """
#include "tests/emulator/simt.h"
#include "kernels/common/expression.cuh"
struct Row { int32_t q_pos, q_len, kv_len, head, kv_head; float head_param[2]; int32_t row_param[2]; };
struct Key { int32_t base, step; int32_t param[2]; int32_t kv_pos() const { return base + step; } };
template <class T> uint32_t word(T x) { uint32_t out = 0; memcpy(&out, &x, sizeof(T)); return out; }
{% import "csrc/attention/variant.jinja" as user %}
extern "C" void all(const Row& row, const Key& key, uint32_t* out) {
{% for tree in trees %}
  out[{{ loop.index0 }}] = word({{ user.show(tree, "Exact") }});
{% endfor %}
}
"""


class Row(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("q_pos", "q_len", "kv_len", "head", "kv_head")]
    _fields_ += [("head_param", ctypes.c_float * 2), ("row_param", ctypes.c_int32 * 2)]


class Key(ctypes.Structure):
    _fields_ = [("base", ctypes.c_int32), ("step", ctypes.c_int32), ("param", ctypes.c_int32 * 2)]


# This variant uses every kind of parameter, so that each parameter has a fixed position in its tensor.
NAMES = Variant(
    logits=per_head("h1") + per_head("h2"), mask=(per_row("r1") < per_row("r2")) & (per_key("k1") < per_key("k2"))
)  # fmt: skip


@emulator.needed
def test_generated_expressions_have_the_bits_of_the_rules(tmp_path):
    drawn = []

    @settings(max_examples=120, deadline=None, database=None, derandomize=True)
    @given(expressions.ints(4), expressions.floats(4), expressions.truths(4))
    def draw(a, b, c):
        drawn.extend((a, b, c))

    draw()
    trees = [attention_variant.tree(node, NAMES, exact=True) for node in drawn]
    text = codegen._environment(source_root()).from_string(HARNESS).render(trees=trees)
    (tmp_path / "all.cc").write_text(text)
    flags = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-shared",
        "-w",
        "-I",
        str(emulator.ROOT / "tests/emulator"),
        "-I",
        str(emulator.ROOT),
    ]
    done = subprocess.run(["g++", *flags, "-o", tmp_path / "all.so", tmp_path / "all.cc"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    library = ctypes.CDLL(str(tmp_path / "all.so"))
    place, stacks = place_and_stacks(3)
    values = values_of(NAMES, place, stacks)
    want = torch.stack([spread(_word(exact(node, values))) for node in drawn])
    out = (ctypes.c_uint32 * len(trees))()
    nan = 0
    for i, j, h in EVERYWHERE[::3]:
        row = Row(
            i + KV_LEN - Q_LEN,
            Q_LEN,
            KV_LEN,
            h,
            h // KV_HEADS,
            tuple(stacks.head[:, h].tolist()),
            tuple(stacks.row[:, i].tolist()),
        )
        library.all(ctypes.byref(row), ctypes.byref(Key(j, 0, tuple(stacks.key[:, j].tolist()))), out)
        for tree, got, expected in zip(drawn, out, want[:, i, j, h].tolist(), strict=True):
            both = _is_nan(tree, got) and _is_nan(tree, expected)
            nan += both
            assert got == expected or both, (tree, (i, j, h), hex(got), hex(expected))
    assert nan < len(trees) * len(EVERYWHERE)


def _word(tensor):
    """The bits as a non-negative number; -0 and 0 differ."""
    if tensor.dtype == torch.float32:
        tensor = tensor.contiguous().view(torch.int32)
    return tensor.long() & 0xFFFFFFFF


def _is_nan(tree, word):
    return tree.facts().type == "f32" and word & 0x7F800000 == 0x7F800000 and word & 0x7FFFFF != 0


# Kernels in the emulator.


def small(**fields):
    plain = {"batch_size": 2, "total_num_rows": 40, "total_kv_rows": 200, "num_kv_heads": 2, "num_qo_heads": 4, "head_dim": 64}
    return type(PLAIN).model_validate(plain | {"dtype": "f16", "causal": True, "kv_split": "off"} | fields)


def subject_of(descriptor):
    return emulator.subject(descriptor, forbid=("wgmma_tile",))


def hold(descriptor, seed=1):
    subject = subject_of(descriptor)
    return subject, *holding.hold(subject, seed, rows=16)


@emulator.needed
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(1, 12))])
def test_random_variants_keep_the_error_bound(seed):
    drawn = []

    @settings(max_examples=seed + 3, deadline=None, database=None, derandomize=True)
    @given(expressions.variants(3))
    def draw(variant):
        drawn.append(variant)

    draw()
    hold(small(variant=max(drawn[seed:], key=lambda v: len(v.canonical_json())), custom_mask=seed % 2 == 1))


CHECKS = (structural.every_key_is_visited_once, structural.a_needle_is_found, structural.what_is_unused_does_not_matter)


@emulator.needed
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_a_kernel_with_a_mask_passes_the_exact_checks(check):
    assert check(subject_of(small(variant=document_mask(), custom_mask=True, window_left=150)), 2) == []


@emulator.needed
def test_a_nonfinite_value_changes_only_the_rows_whose_mask_includes_it():
    subject = subject_of(small(variant=Variant(mask=equal(kv_pos % 7, per_row("phase"))), custom_mask=True, causal=False))
    args = subject.args(3, inputs.DrawnLengths(q=[40, 0], kv=[130, 0]))
    subject.run(args)
    want = args.o.clone()
    seen = structural.oracle.shown(subject.descriptor, args, 0, 0, 40, 130)
    key = int(seen.sum(0).argmax())
    args.v[key, 1, 5] = float("nan")
    subject.run(args)
    touched = torch.zeros(40, 4, dtype=torch.bool)
    touched[seen[:, key], 2:] = True
    assert 0 < int(touched.sum()) < 80
    assert torch.equal(args.o[~touched], want[~touched])
    assert bool(args.o[touched].isnan().any(-1).all())


@emulator.needed
def test_a_mask_that_is_too_short_hides_the_missing_keys_and_is_not_read_past_its_end():
    subject = subject_of(small(custom_mask=True, causal=False))
    args = subject.args(3, inputs.DrawnLengths(q=[40, 0], kv=[130, 0]))
    half = args.packed_mask[: 130 * 20 // 8].clone()
    subject.run(replace(args, packed_mask=half))
    assert bool((args.lse[20:] == float("-inf")).all())
    assert bool((args.lse[:20] > float("-inf")).any())


@emulator.needed
def test_the_error_check_detects_a_wrong_parameter_of_a_variant():
    """Negative control: a wrong slope, mask bit or per-key parameter exceeds the bound."""
    subject = subject_of(small(variant=Variant(logits=alibi(4).logits, mask=per_key("doc") < 2), custom_mask=True))
    args = subject.args(1)
    for change in (
        {"head_params": args.head_params * 1.01}, {"packed_mask": args.packed_mask ^ 4}, {"key_params": 2 - args.key_params},
    ):  # fmt: skip
        subject.run(replace(args, **change))
        assert numerics.check(subject.descriptor, args, subject.plan.sku, rows=40).worst > 1, change


@emulator.needed
def test_a_soft_cap_expression_equals_logits_soft_cap_in_a_kernel():
    _, args, _ = hold(small(variant=soft_cap(5.0)))
    plain = subject_of(small(logits_soft_cap=5.0))
    other = plain.args(1)
    plain.run(other)
    assert torch.equal(other.q, args.q)
    torch.testing.assert_close(args.lse, other.lse, rtol=0, atol=1e-5)


def test_a_distance_between_positions_is_exact_below_2_to_the_24():
    """The kernel converts once per row and adds once per key; the distance is exact for positions below 2^24."""
    node = abs(f32(kv_pos - q_pos)) + score
    assert "distance" in str(attention_variant.tree(node, Variant(logits=node), exact=False))
    assert "distance" not in str(attention_variant.tree(node.args[0], Variant(logits=node), exact=True))


@pytest.mark.parametrize(
    "line",
    [
        per_head("slopes") * f32(kv_pos - q_pos), f32(q_pos - kv_pos) * per_head("slopes"), 0.3 * f32(kv_pos),
    ],
)  # fmt: skip
def test_a_linear_term_is_one_product_per_row_unless_bits_are_guaranteed(line):
    """Each key needs one fma. If bits are guaranteed, the kernel evaluates the expression itself."""
    variant = Variant(logits=score + line)
    assert "ramp" in str(attention_variant.tree(variant.logits, variant, exact=False))
    assert "ramp" not in str(attention_variant.tree(line, variant, exact=True))


@emulator.needed
@pytest.mark.parametrize("far", [3000, 100])
def test_a_linear_term_of_any_slope_keeps_the_error_bound(far):
    """The slopes are not powers of two and are large where distances are small: the bound includes the rounding at the first
    key of a tile."""
    line = per_head("slopes") * f32(q_pos - kv_pos) + f32(kv_pos) * 0.3
    subject = subject_of(small(variant=Variant(logits=0.001 * score + line)))
    args = subject.args(3)
    args = replace(args, head_params=torch.full_like(args.head_params, far / 7.0))
    subject.run(args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku, rows=40)
    assert report.worst <= 1, report


@pytest.mark.parametrize(
    ("variant", "field", "got"),
    [
        (document_mask(), "variant parameters per key", "1"),
        (Variant(logits=score / 3.0), "variant.logits", "div"),
        (Variant(logits=log2(abs(score) + 1.0)), "variant.logits", "log2"),
        (Variant(logits=sum((score * c for c in range(1, 9)), score)), "nodes of variant.logits", "33"),
    ],
)
def test_the_sm_90a_kernel_declines_an_unsupported_variant_and_names_it(variant, field, got):
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        options = {o.candidate.impl: o for o in survey(changed(PLAIN, variant=variant), Preference(), SM_90A)}
    assert [(r.code, r.field, r.got) for r in options["wgmma_tile"].reasons] == [("OPF-S021", field, got)]
    assert options["mma_tile"].reasons == ()


@pytest.mark.parametrize("variant", [alibi(8), sliding_window(9), soft_cap(5.0), None])
def test_the_sm_90a_kernel_accepts_all_other_variants(variant):
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        assert Plan.select(changed(PLAIN, variant=variant, custom_mask=True), target=SM_90A).sku.impl == "wgmma_tile"
