"""Classifies FlashInfer's tests by outcome; each kind of outcome has one word.

pass; refuse: the adapter names an argument or a part that it does not have; kernel: no kernel takes the problem on this GPU;
oracle: the oracle of these scripts lacks it; wider: a call works where a refusal is expected; words: an error in other words;
removed: never run; setup: the test failed before or after its own code; fail; skip.
"""

from __future__ import annotations

from collections.abc import Iterator

from flashinfer_stand_in import NotHere

from opfacade.errors import UnsupportedError

WORDS = ("pass", "refuse", "kernel", "oracle", "wider", "words", "removed", "setup", "fail", "skip")
# These tests start a process that imports FlashInfer itself, or compile its sources.
OF_FLASHINFER_ITSELF = ("torch_compile_cuda_graph", "cuda_graph_bad_scale", "test_norm_compilation_without_fp8")
# These tests expect FlashInfer to refuse calls that give correct results here.
WIDER = {
    "test_layernorm_quant_invalid_inputs": "layernorm_quant takes f16 and rows with a stride",
    "test_batch_decode_rejects_unequal_kv_strides_nvfp4_contract": "K and V may have strides of their own",
    "test_tensor_core_decode_rejects_mismatched_q_len": "use_tensor_cores is a hint: several rows of a request need none",
    "test_cuda_rejects_unsupported_group_size": "groups of 8-bit rows have any size that divides the row",
}


class OracleLacks(Exception):
    """The oracle of these scripts does not support a test's arguments, so the test says nothing about the adapter."""


def removed(test: str) -> str:
    """The pattern that excludes a test; empty if the test runs."""
    return next((f"never run: {name}" for name in OF_FLASHINFER_ITSELF if name in test), "")


def judged(test: str, error: BaseException | None, when: str) -> tuple[str, str]:
    """The word of a test that failed in a phase of pytest ("setup", "call", "teardown"), and its reason."""
    first = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
    if when != "call":
        return "setup", first
    if "Regex pattern did not match" in str(error) and "[OPF-" in str(error):
        return "words", "the error says it in other words"
    wider = WIDER.get(test.partition("[")[0])
    if wider and "DID NOT RAISE" in str(error):
        return "wider", wider
    for one in _raised(error):
        if word := _refusal(one):
            return word, str(one).splitlines()[0][:160]
    return "fail", first


def _raised(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its explicit causes. Errors that were only being handled do not count, because then the handler failed."""
    while error is not None:
        yield error
        error = error.__cause__


def _refusal(error: BaseException) -> str:
    if isinstance(error, OracleLacks):
        return "oracle"
    if isinstance(error, UnsupportedError):
        return "kernel" if ".select: no candidate for target" in str(error) else "refuse"
    return "refuse" if isinstance(error, NotHere) or "OPF-C008" in str(error) else ""
