"""How FlashInfer's own tests are counted: a refusal counts if the adapter raises it by name, in the test's own code."""

import sys
from pathlib import Path

import pytest

from opfacade.errors import UnsupportedError

FOLDER = Path(__file__).resolve().parents[2] / "scripts/peer_tests"
NAMED = "top_k.call: k expected at most 2048, got 4096. [OPF-C001]"
NO_KERNEL = "mla_decode.select: no candidate for target sm_90a [OPF-S002]\n  more"


@pytest.fixture
def judging(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import judging

    yield judging
    for name in ("judging", "flashinfer_stand_in", "places"):
        sys.modules.pop(name, None)


def caused(error, by):
    error.__cause__ = by
    return error


def beside(error, other):
    error.__context__ = other
    return error


def test_each_error_has_its_word(judging):
    from flashinfer_stand_in import NotHere

    cases = {
        "refuse": [
            UnsupportedError(NAMED),
            caused(ValueError("x"), UnsupportedError(NAMED)),
            NotHere("flashinfer.a is not in"),
        ],
        "kernel": [UnsupportedError(NO_KERNEL)],
        "oracle": [judging.OracleLacks("oracle: factors of heads")],
        "words": [AssertionError("Regex pattern did not match.\n Input: 'k expected [OPF-C001]'")],
        "fail": [AssertionError("not close"), beside(AssertionError("not close"), UnsupportedError(NAMED)), ValueError()],
    }
    for word, errors in cases.items():
        for error in errors:
            assert judging.judged("test_a[1]", error, "call")[0] == word, error


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_refusal_outside_of_the_tests_own_code_is_none(judging, when):
    for error in (UnsupportedError(NAMED), UnsupportedError(NO_KERNEL), judging.OracleLacks("x"), None):
        assert judging.judged("test_a", error, when)[0] == "setup"


def test_a_wider_call_and_a_removed_test_are_known_by_name(judging):
    wider = next(iter(judging.WIDER))
    assert judging.judged(f"{wider}[x]", AssertionError("DID NOT RAISE <class 'ValueError'>"), "call")[0] == "wider"
    assert judging.judged("test_other", AssertionError("DID NOT RAISE <class 'ValueError'>"), "call")[0] == "fail"
    assert judging.removed("tests/a.py::test_norm_compilation_without_fp8[1]")
    assert not judging.removed("tests/a.py::test_norm")


def test_every_word_has_a_column(judging):
    assert {"pass", "refuse", "kernel", "oracle", "wider", "words", "removed", "setup", "fail", "skip"} == set(judging.WORDS)


NEW = ("attention/test_attention_sink", "attention/test_hopper_fp8_sliding_window", "norm/test_fused_rmsnorm_silu")


@pytest.mark.parametrize("name", [*NEW, "quantization/test_per_token_group_quant_8bit_cuda", "utils/test_quantization"])
def test_a_file_of_the_table_runs_where_the_checkout_has_it(judging, tmp_path, name):
    from places import FILES, here

    assert f"tests/{name}.py" in FILES
    assert len(set(FILES)) == len(FILES)
    (tmp_path / f"tests/{name}.py").parent.mkdir(parents=True)
    (tmp_path / f"tests/{name}.py").touch()
    assert here(tmp_path) == [f"tests/{name}.py"]


def test_tests_that_ask_for_another_gpu_are_told_that_it_is_here(judging):
    from types import ModuleType

    from places import answer

    module, other = ModuleType("tests.norm.test_fused_rmsnorm_silu"), ModuleType("test_norm")
    module.get_cc = other.get_cc = lambda: 90
    answer(module)
    answer(other)
    assert (module.get_cc(), other.get_cc()) == (100, 90)


def test_a_kernel_of_ones_own_is_refused_by_name_and_not_for_its_table(judging):
    import torch
    from flashinfer_stand_in import Missing

    from opfacade.compat.flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    sources = Missing("flashinfer.jit.attention.variants.attention_sink_decl")["fa2"]
    with pytest.raises(UnsupportedError) as caught:
        BatchPrefillWithRaggedKVCacheWrapper(torch.empty(8, dtype=torch.uint8), "NHD", jit_args=("uri", sources))
    assert judging.judged("test_attention_sink", caught.value, "call")[0] == "refuse"


def test_either_backend_of_the_quantisation_of_groups_gives_the_same():
    import torch

    from opfacade.compat.flashinfer.quantization import per_token_group_quant_8bit

    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    ours, other = (per_token_group_quant_8bit(x, 128, backend=name) for name in ("cutile", "cuda"))
    assert torch.equal(ours[0].view(torch.uint8), other[0].view(torch.uint8))
    assert torch.equal(ours[1], other[1])
    assert (ours[0].float().view(3, 2, 128) * ours[1][..., None] - x.float().view(3, 2, 128)).abs().max() < 0.3
    with pytest.raises(UnsupportedError, match="backend"):
        per_token_group_quant_8bit(x, 128, backend="triton")
