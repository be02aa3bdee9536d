"""Names, order and defaults of arguments, compared with tables of the libraries' own signatures, which scripts/signatures
wrote.
"""

import inspect
import json
from pathlib import Path

import pytest
import torch

import opfacade.compat.flash_attn
import opfacade.compat.flashinfer

DATA = Path(__file__).resolve().parents[1] / "data"
MODULES = {"flash_attn": opfacade.compat.flash_attn, "flashinfer": opfacade.compat.flashinfer}
DEEPER = tuple(
    getattr(opfacade.compat.flashinfer, name) for name in ("rope", "quantization", "gemm", "fused_moe")
)  # additional names
TABLES = {
    name: json.loads((DATA / f"{name}.json").read_text())
    for name in ("flash_attn_2.8.4", "flashinfer_0.6.18", "flashinfer_0.7.2")
}

ENUMS = ("TopKTieBreak", "ActivationType")

# Names that the adapters lack; docs/migrating.md lists them.
ABSENT = {
    "BatchAttentionWithAttentionSinkWrapper", "BatchPrefillWithCausalBidirectionalRangesWrapper",
    "prewarm_paged_kv_stride_variant", "workspace_size", "rmsnorm_sigmoid_gate",
    "fused_add_rmsnorm_fp8_block_quant",
}  # fmt: skip
CALLS = [(table, call) for table, found in TABLES.items() for call in found["calls"] if not set(call.split(".")) & ABSENT]


def ours(table, call):
    owner = MODULES[TABLES[table]["package"]]
    own = (part for part in (owner, *DEEPER) if hasattr(part, call.split(".")[0]))
    owner = next(own, owner)
    for part in call.split("."):
        owner = inspect.getattr_static(owner, part) if isinstance(owner, type) and part != "__init__" else getattr(owner, part)
    given = [p for p in inspect.signature(owner).parameters.values() if p.name != "self"]
    return {p.name: p for p in given}


def value_of(source):
    return eval(source, {"torch": torch} | {name: getattr(opfacade.compat.flashinfer, name) for name in ENUMS})


@pytest.mark.parametrize(("table", "call"), CALLS)
def test_each_call_has_their_arguments_in_their_order(table, call):
    theirs, found = TABLES[table]["calls"][call], ours(table, call)
    kinds = {p.kind for p in found.values()}
    positional = [p.name for p in found.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    wanted = [name for name, kind, _ in theirs if kind == "positional"]
    assert positional[: len(wanted)] == wanted
    for name, kind, default in theirs:
        if kind in ("positional", "keyword"):
            assert name in found or inspect.Parameter.VAR_KEYWORD in kinds, name
        if name in found and kind in ("positional", "keyword") and default:
            required = found[name].default is inspect.Parameter.empty
            assert (required and default == "None") or found[name].default == value_of(default), name
        if kind == "rest":  # extras for a user's own kernel, or optional positional arguments, which are named arguments here
            assert inspect.Parameter.VAR_POSITIONAL in kinds or len(positional) > len(wanted)


@pytest.mark.parametrize("table", TABLES)
def test_tables_say_what_they_are_of(table):
    found = TABLES[table]
    assert table == f"{found['package']}_{found['version']}"
    assert len(found["calls"]) >= 7


def test_what_is_absent_is_absent():
    names = {part for table in TABLES.values() for call in table["calls"] for part in call.split(".")}
    assert names >= ABSENT
    assert not [name for name in ABSENT if hasattr(opfacade.compat.flashinfer, name)]
