"""The tables of tensors on the pages of the ops agree with the code, and each is on the page of its op."""

import runpy
from pathlib import Path

import pytest

from opfacade.select.registry import descriptor_types, examples
from opfacade.tools import operand_table

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "docs/ops"


def row(op, name):
    (found,) = [line for line in operand_table.table(op) if line.startswith(f"| `{name}` |")]
    return [cell.strip() for cell in found.replace("\\|", "/").strip("|").split("|")]


def test_the_pages_say_what_the_code_says(monkeypatch):
    monkeypatch.setenv("OPFACADE_DISABLE_JIT", "1")  # the script sets it; it is removed again after the test
    made = runpy.run_path(str(ROOT / "scripts/docs_pages"))
    pages = made["pages_with_tables"]()
    for page in pages:
        assert page.read_text() == made["operands"](page), f"run scripts/docs_pages --operands: {page.name}"
    told = "".join(page.read_text() for page in pages)
    assert [op for op in descriptor_types() if f"\n`{op}`, `" not in told] == []


@pytest.mark.parametrize(
    ("op", "name", "cells"),
    [
        ("paged_decode", "sinks", ["in", "f32", "`sinks`: `True`"]),
        ("paged_decode", "k_data", ["in", "bf16, f16, f32, f8_e4m3, f8_e5m2", "always"]),
        ("paged_decode", "block_table", ["in", "i32", "`page_table`: `'block'`"]),
        ("paged_prefill", "lse", ["out", "f32", "`return_lse`: `True`"]),
        ("ragged_prefill", "kv_indptr", ["in", "i32", "always"]),
        ("paged_kv_append", "k_data", ["in and out", "bf16, f16, f32, f8_e4m3, f8_e5m2", "always"]),
        ("sample", "bitmask", ["in", "i32", "conditional"]),
        ("sample", "logits", ["in", "bf16, f16, f32", "always"]),
        ("dequantize", "x", ["in", "f8_e4m3, f8_e5m2, i8", "always"]),
        ("norm", "residual", ["in and out", "bf16, f16, f32", "conditional"]),
        ("map", "outputs", ["out", "as declared", "conditional"]),
    ],
)
def test_a_row_says_role_types_and_presence(op, name, cells):
    assert row(op, name)[1:4] == cells


def test_texts_that_a_stranger_needs_are_there():
    assert "bit t % 32 of word t // 32" in row("sample", "bitmask")[4]
    assert "f32 [num_qo_heads]" in row("paged_decode", "sinks")[4]
    assert "[batch_size, n + 1, vocab]" in row("verify_drafts", "target_probs")[4]


@pytest.mark.parametrize("one", examples(), ids=lambda one: one.op)
def test_every_operand_of_an_example_has_a_row_that_fits(one):
    forms = type(one).args_type.parts
    for name, spec in one.operands().items():
        of = next((whole for whole, parts in forms.items() if name in parts.names), name)
        _, role, types, present, _ = row(one.op, of)
        assert {"in": "in", "index": "in", "out": "out", "inout": "in and out"}[spec.role] in role.split(", ")
        assert spec.dtype in types.split(", ") or types == "as declared"
        field, _, values = present.replace("`", "").partition(": ")
        assert not values or repr(getattr(one, field)) in values.split(", ")
