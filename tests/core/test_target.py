"""Target: a validated plain value."""

import dataclasses
import pickle

import pytest

from opfacade import Target
from opfacade.errors import DescriptorError


@pytest.mark.parametrize(
    ("text", "sm_version", "sm_count", "shared"),
    [
        ("sm_90a", 90, 132, 232448),
        ("sm_80", 80, 108, 166912),
        ("sm_89", 89, 128, 101376),
        ("sm_120a", 120, 170, 101376),
        ("sm_121a", 121, 48, 101376),
        ("sm_101a", 101, 20, 232448),
        ("sm_88", 88, 16, 101376),
        ("cpu", 0, 0, 0),
    ],
)
def test_parse_knows_the_usual_parts(text, sm_version, sm_count, shared):
    target = Target.parse(text)
    assert (target.arch, target.sm_version, target.sm_count, target.max_shared_memory) == (text, sm_version, sm_count, shared)
    assert target.is_cpu == (text == "cpu")


def test_an_unknown_architecture_gets_the_least_any_has():
    assert Target.parse("sm_77") == Target("sm_77", 1, 49152)


@pytest.mark.parametrize(
    "text", ["", "sm90", "sm_9", "SM_90", "sm_90b", "sm_90a ", "sm_90a\n", "cuda", "sm_\u0669\u0660", None, 90]
)
def test_a_misspelt_architecture_is_refused(text):
    with pytest.raises(DescriptorError, match="OPF-D010") as caught:
        Target.parse(text)
    assert caught.value.code == "OPF-D010"
    with pytest.raises(DescriptorError, match="OPF-D010"):
        Target(text, 1)


@pytest.mark.parametrize(
    "fields", [{"sm_count": -1}, {"sm_count": True}, {"sm_count": 1.0}, {"sm_count": 2**31}, {"sm_count": 0}]
)
def test_a_wrong_number_is_refused(fields):
    with pytest.raises(DescriptorError, match="sm_count"):
        Target("sm_90a", **fields)


def test_shared_memory_is_checked():
    with pytest.raises(DescriptorError, match=r"max_shared_memory.*-1"):
        Target("sm_90a", 132, -1)


def test_a_target_is_a_frozen_hashable_value():
    assert {Target.parse("sm_90a"): 1}[Target("sm_90a", 132, 232448)] == 1
    assert pickle.loads(pickle.dumps(Target.parse("sm_90a"))) == Target.parse("sm_90a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Target.cpu().arch = "sm_90a"


def test_without_a_device_the_current_target_is_the_cpu():
    import torch

    assert Target.current().is_cpu != torch.cuda.is_available()
