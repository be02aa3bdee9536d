"""docs/migrating.md is correct: its example runs, and the names in its tables exist or are listed as missing."""

import re
from pathlib import Path

import torch

import opfacade.compat.flash_attn as flash_attn
import opfacade.compat.flashinfer as flashinfer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/migrating.md").read_text()


def test_the_example_runs_and_both_libraries_calls_agree():
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 5
    names = {}
    torch.manual_seed(0)
    for example in examples:
        exec(compile(example, "migrating.md", "exec"), names)
    torch.testing.assert_close(names["o"], names["again"][:, 0])


def first_cells(title):
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            yield cells[0], cells[1]


def test_calls_in_the_tables_are_there():
    for title, module, call in (
        ("flash-attn", flash_attn, r"flash_attn_\w+"),
        ("FlashInfer", flashinfer, r"[A-Z]\w+Wrapper|\w+_cache\b"),
        ("FlashInfer", flashinfer, r"sampling_from_\w+|top_[kp]_\w+|softmax|chain_speculative_sampling|logits_processor"),
        ("FlashInfer", flashinfer, r"\w*rmsnorm\w*|layernorm\w*|\w+_and_mul|apply_\w*rope\w*"),
        ("FlashInfer", flashinfer, r"b?mm_\w+|tgv_\w+"),
    ):
        named = [(name, here) for cell, here in first_cells(title) for name in re.findall(rf"`({call})`", cell)]
        assert len(named) >= 5
        for name, here in named:
            assert hasattr(module, name) == here.startswith("the same"), name


def test_every_code_of_the_adapters_is_on_the_page():
    sources = "".join(path.read_text() for path in (ROOT / "opfacade/compat").rglob("*.py"))
    codes = set(re.findall(r"OPF-(C\d{3})", sources))
    assert codes == set(re.findall(r"\b(C\d{3})", PAGE))
