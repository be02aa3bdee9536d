"""Shared parts of both adapters: cached descriptors, preferences, constants, refusals. They use only the public API."""

import re
from pathlib import Path

import pytest
import torch

import opfacade.compat
from opfacade import Preference, Target
from opfacade.compat import constants, preferring, selecting
from opfacade.compat.dtypes import as_dtype, name_of
from opfacade.compat.flash_attn import flash_attn_func
from opfacade.compat.refusals import refuse_unless
from opfacade.core import device_tensors
from opfacade.errors import ArgumentError, UnsupportedError
from opfacade.plans.attention import BatchRaggedPrefillDescriptor
from tests.test_structure import PACKAGE

CPU = torch.device("cpu")


def tensors(seed=0, rows=5):
    torch.manual_seed(seed)
    return torch.randn(2, rows, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)


def test_a_call_with_facts_that_were_seen_validates_no_descriptor(monkeypatch):
    flash_attn_func(*tensors(), causal=True, softcap=1.25)
    made = []
    monkeypatch.setattr(BatchRaggedPrefillDescriptor, "model_validate", lambda *a, **k: made.append(a))
    monkeypatch.setattr("opfacade.compat.attending.BatchRaggedPrefillDescriptor", lambda **k: made.append(k))
    flash_attn_func(*tensors(1), causal=True, softcap=1.25)
    assert made == []


def test_descriptors_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(selecting, "_MOST", 3)
    monkeypatch.setattr(selecting, "_descriptors", {})
    for scale in range(1, 9):
        flash_attn_func(*tensors(), softmax_scale=scale / 8)
    assert len(selecting._descriptors) == 3


def test_a_preference_holds_within_its_block():
    with preferring(Preference(forbid=("reference",))), pytest.raises(UnsupportedError, match="reference is forbidden"):
        flash_attn_func(*tensors())
    with preferring(Preference(forbid=("reference",))), preferring(None):
        flash_attn_func(*tensors())
    flash_attn_func(*tensors())


@pytest.mark.parametrize("bound", [0, 1, 7, 8, 9, 15, 17, 100, 4095, 4097, 2**31 - 1])
def test_bounds_are_rounded_up_to_few(bound):
    found = selecting.rounded_up(bound)
    assert bound <= found <= bound + bound // 4
    assert found == bound or found % (1 << (found.bit_length() - 3)) == 0


def test_growing_bounds_make_few_descriptors():
    assert len({selecting.rounded_up(bound) for bound in range(1, 10_000)}) < 60


def test_tensors_on_the_host_are_planned_for_it():
    assert selecting.target_of(CPU) == Target.cpu()


def test_constants_are_made_once_and_anew_in_a_capture(monkeypatch):
    assert constants.even_indptr(3, 4, CPU).tolist() == [0, 4, 8, 12]
    assert constants.even_indptr(3, 4, CPU) is constants.even_indptr(3, 4, CPU)
    assert constants.numbered(70, CPU).tolist() == list(range(70))
    assert constants.numbered(65, CPU).data_ptr() == constants.numbered(70, CPU).data_ptr()
    assert constants.numbered(0, CPU).tolist() == []
    assert constants.filled(2, 7, CPU).tolist() == [7, 7]
    assert constants.head_values((0.5, 2.0), CPU).tolist() == [0.5, 2.0]
    monkeypatch.setattr(device_tensors, "capturing", lambda device: True)
    assert constants.even_indptr(3, 4, CPU) is not constants.even_indptr(3, 4, CPU)
    assert constants.head_values((0.5, 2.0), CPU) is constants.head_values((0.5, 2.0), CPU)


def test_constants_made_in_inference_mode_serve_outside():
    with torch.inference_mode():
        found = constants.even_indptr(5, 77, CPU)
    assert not found.is_inference()


def test_neutral_values_pass_and_others_are_named():
    refuse_unless("op", {"a": (None, None), "b": (0.0, 0.0), "c": (False, False), "d": ("none", "none")})
    for value, neutral in ((0, None), (1e-9, 0.0), (True, 0.0), (torch.zeros(1), 0.0), ("x", "none")):
        with pytest.raises(UnsupportedError, match="a expected None"):
            refuse_unless("op", {"a": (value, neutral)})


def test_dtypes_by_name():
    assert as_dtype("op", "a", "bfloat16") is torch.bfloat16
    assert as_dtype("op", "a", None) is None
    for wrong in ("float17", "nn", 3):
        with pytest.raises(ArgumentError, match="a expected a torch dtype"):
            as_dtype("op", "a", wrong)
    with pytest.raises(UnsupportedError, match="a expected one of"):
        name_of("op", "a", torch.int8)


PUBLIC = re.compile(
    r"opfacade(\.compat.*|\.plans\.([a-z_]+|_attention\.growth)|\.variant|\.variant_examples|\.errors"
    r"|\.core\.(descriptor|device_tensors)|\.base\.fork_lock|\.programs\.(fields|words))?"
)


def test_the_adapters_use_the_public_api_alone():
    """Except descriptors in annotations, tensors that calls share, locks, and bounds of growing requests. Programs are public:
    docs/programs.md."""
    for path in sorted(Path(opfacade.compat.__file__).parent.rglob("*.py")):
        for module in re.findall(r"^\s*(?:from|import) (opfacade[\w.]*)", path.read_text(), re.MULTILINE):
            assert PUBLIC.fullmatch(module), f"{path.relative_to(PACKAGE)}: {module}"
