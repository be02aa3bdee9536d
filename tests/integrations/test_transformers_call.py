"""One call of the attention functions: a formula in f64, refusals by name, and values that the layers of a pass share."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opfacade import errors
from opfacade.integrations.transformers.arguments import IGNORED
from opfacade.integrations.transformers.gathered import gathered_attention
from opfacade.integrations.transformers.paged import paged_attention
from opfacade.integrations.transformers.releases import release_of
from opfacade.integrations.transformers.standard import attention

MODULE = SimpleNamespace(layer_idx=0, is_causal=True)


def tensors(batch=2, q_len=5, kv_len=9, dim=16, dim_vo=16):
    generator = torch.Generator().manual_seed(1)

    def make(heads, length, width):
        return torch.randn(batch, length, heads, width, generator=generator).transpose(1, 2)

    return make(4, q_len, dim), make(2, kv_len, dim), make(2, kv_len, dim_vo)


def formula(q, k, v, seen, cap=0.0, sinks=None):
    q, k, v = q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = cap * torch.tanh(scores / cap) if cap else scores
    scores = scores.masked_fill(~seen, -math.inf)
    extra = [] if sinks is None else [sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)]
    weights = torch.softmax(torch.cat([scores, *extra], -1), -1)[..., : k.shape[2]].nan_to_num(0.0)
    return (weights @ v).transpose(1, 2).float()


@pytest.mark.parametrize("dim_vo", [16, 24])
@pytest.mark.parametrize("q_len", [1, 5])
def test_a_mask_a_cap_and_sinks_are_those_of_the_formula(q_len, dim_vo):
    q, k, v = tensors(q_len=q_len, dim_vo=dim_vo)
    mask = torch.rand(2, 1, q_len, 12, generator=torch.Generator().manual_seed(2)) > 0.3
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    o, weights = attention(MODULE, q, k, v, mask, softcap=3.0, s_aux=sinks)
    assert weights is None
    torch.testing.assert_close(o, formula(q, k, v, mask[..., :9], 3.0, sinks))


@pytest.mark.parametrize("given", [torch.ones(2).bool(), torch.tensor(True), np.ones(2, dtype=bool)], ids=repr)
def test_causality_is_no_tensor(given):
    message = f"is_causal expected True, False or None, got {type(given).__name__}\\. \\[OPF-I001\\]"
    for module, argument in ((MODULE, given), (SimpleNamespace(is_causal=given), None)):
        with pytest.raises(errors.UnsupportedError, match=message):
            attention(module, *tensors(), None, is_causal=argument)
    q, k, v = tensors()
    o, _ = attention(MODULE, q, k, v, None, is_causal=np.bool_(True))
    assert torch.equal(o, attention(MODULE, q, k, v, None, is_causal=True)[0])


def test_a_sequence_that_outgrows_its_window_needs_no_other_kernel(monkeypatch):
    """Whether there is a window is part of a kernel's SKU: it must not change while a sequence grows."""
    from opfacade.integrations.transformers import dense_call

    asked = set()

    class Recorded(Exception):
        pass

    def select(descriptor):
        asked.add(descriptor.window_left)
        raise Recorded

    monkeypatch.setattr(dense_call.BatchPagedDecodePlan, "select", staticmethod(select))
    long = tensors(1, 1, 4100)
    for length in range(1, 4101):
        q, k, v = long[0], long[1][:, :, :length], long[2][:, :, :length]
        with pytest.raises(Recorded):
            attention(SimpleNamespace(is_causal=True), q, k, v, None, sliding_window=512)
    assert asked == {511}


def test_a_window_without_a_mask_hides_the_keys_before_it():
    q, k, v = tensors(q_len=9)
    i, j = torch.arange(9)[:, None], torch.arange(9)
    o, _ = attention(MODULE, q, k, v, None, sliding_window=3)
    torch.testing.assert_close(o, formula(q, k, v, (j <= i) & (j > i - 3)))


@pytest.mark.parametrize("dim_vo", [16, 24])
def test_without_a_mask_rows_and_keys_begin_together_and_a_single_row_sees_all(dim_vo):
    """A causal call with more keys than rows fills a static cache: keys past its rows are unused, whatever they hold."""
    q, k, v = tensors(dim_vo=dim_vo)
    k[:, :, 5:], v[:, :, 5:] = math.nan, math.nan
    o, _ = attention(MODULE, q, k, v, None)
    torch.testing.assert_close(o, formula(q, k[:, :, :5], v[:, :, :5], torch.ones(5, 5, dtype=torch.bool).tril()))
    q, k, v = tensors(q_len=1, dim_vo=dim_vo)
    torch.testing.assert_close(attention(MODULE, q, k, v, None)[0], formula(q, k, v, torch.ones(1, 9, dtype=torch.bool)))


@pytest.mark.parametrize("module", [MODULE, SimpleNamespace(is_causal=False)])
def test_a_call_that_is_not_causal_sees_all_keys(module):
    q, k, v = tensors()
    o, _ = attention(module, q, k, v, None, is_causal=False if module is MODULE else None)
    torch.testing.assert_close(o, formula(q, k, v, torch.ones(5, 9, dtype=torch.bool)))


def test_the_op_of_a_graph_is_what_torch_asks_of_one():
    mask = torch.ones(2, 1, 5, 9, dtype=torch.bool)
    arguments = (*tensors(dim_vo=24), mask, 0.25, 3.0, torch.zeros(4), None, False, 1)
    torch.library.opcheck(torch.ops.opfacade_transformers.attention.default, arguments)


def test_a_mask_that_changes_between_two_passes_is_packed_again_and_shared_within_one(monkeypatch):
    from opfacade.integrations.transformers import problem

    pack, made = problem.pack_mask, []
    monkeypatch.setattr(problem, "pack_mask", lambda mask: made.append(1) or pack(mask))
    q, k, v = tensors()
    mask = torch.ones(2, 1, 5, 9, dtype=torch.bool)
    layers = [SimpleNamespace(layer_idx=index, is_causal=True) for index in range(3)]
    for layer in layers:
        attention(layer, q, k, v, mask)
    assert len(made) == 1
    with torch.inference_mode():  # writes that no counter shows
        mask.numpy()[..., 4:] = False
    for layer in layers:
        o, _ = attention(layer, q, k, v, mask)
        torch.testing.assert_close(o, formula(q, k, v, mask))
    assert len(made) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("position_bias", torch.zeros(1, 4, 5, 9)), ("output_attentions", True), ("cu_seq_lens_q", torch.zeros(3)), ("tau", 0.5)],
)
@pytest.mark.parametrize("function", [attention, gathered_attention])
def test_an_unknown_argument_is_refused_by_name(function, name, value):
    with pytest.raises(errors.UnsupportedError, match=rf"transformers\.attention: {name} expected to be absent.*OPF-I001"):
        function(MODULE, *tensors(), None, **{name: value})


def test_arguments_that_say_nothing_of_attention_are_taken():
    q, k, v = tensors()
    given = dict.fromkeys(IGNORED, True) | {"position_bias": None, "output_attentions": False}
    torch.testing.assert_close(attention(MODULE, q, k, v, None, **given)[0], attention(MODULE, q, k, v, None)[0])


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.zeros(2, 1, 5, 9), errors.DTypeError),
        (torch.ones(2, 4, 5, 9, dtype=torch.bool), errors.ShapeError),
        (torch.ones(2, 1, 5, 8, dtype=torch.bool), errors.ShapeError),
        (torch.ones(2, 9, dtype=torch.bool), errors.ShapeError),
    ],
)
def test_a_mask_of_another_form_is_refused(mask, error):
    with pytest.raises(error, match="attention_mask expected"):
        attention(MODULE, *tensors(), mask)


def test_keys_of_another_batch_dropout_and_gradients_are_refused():
    q, k, v = tensors()
    with pytest.raises(errors.ShapeError, match="key, value expected"):
        attention(MODULE, q, k[:1], v[:1], None)
    with pytest.raises(errors.UnsupportedError, match=r"dropout expected to be absent, got 0\.1"):
        attention(MODULE, q, k, v, None, dropout=0.1)
    with pytest.raises(errors.GradNotSupportedError):
        attention(MODULE, q.requires_grad_(), k, v, None)


@pytest.mark.parametrize("given", [None, "x", [1.0]])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_what_is_no_tensor_is_refused_by_name(name, given):
    own = dict(zip(("query", "key", "value"), tensors(1), strict=True)) | {name: given}
    got = type(given).__name__
    step = {"cu_seq_lens_q": 0, "cu_seq_lens_k": 0, "max_length_q": 1, "max_length_k": 1, "read_index": 0}
    with pytest.raises(errors.DTypeError, match=rf"transformers\.attention: {name} expected a tensor, got {got}"):
        attention(SimpleNamespace(), **own, attention_mask=None)
    with pytest.raises(errors.DTypeError, match=rf"{name} expected a tensor, got {got}"):
        gathered_attention(SimpleNamespace(), **own, attention_mask=None, **step)
    with pytest.raises(errors.ShapeError, match=rf"{name} expected \[batch, heads, length, dim\], got \[3\]"):
        attention(SimpleNamespace(), **(own | {name: torch.zeros(3)}), attention_mask=None)


@pytest.mark.parametrize(
    ("argument", "value", "told"),
    [
        ("s_aux", "x", "s_aux expected a tensor, got str"),
        ("s_aux", [1.0], "s_aux expected a tensor, got list"),
        ("sliding_window", "x", "sliding_window expected None or an integer, got 'x'"),
        ("sliding_window", 2.0, "sliding_window expected None or an integer, got float"),
        ("sliding_window", [2], "sliding_window expected None or an integer, got list"),
        ("sliding_window", torch.ones(2), "sliding_window expected None or an integer, got Tensor"),
        ("softcap", torch.ones(2), "logits_soft_cap expected a valid number"),
        ("softcap", "x", "logits_soft_cap expected a valid number, got 'x'"),
        ("scaling", "x", "sm_scale expected a valid number, got 'x'"),
    ],
)
def test_a_parameter_of_scores_of_another_kind_is_refused_by_name(argument, value, told):
    with pytest.raises(errors.OpfacadeError, match=told):
        attention(SimpleNamespace(), *tensors(), None, **{argument: value})


def test_the_paged_function_wants_what_continuous_batching_passes():
    with pytest.raises(errors.ArgumentError, match="cache expected what continuous batching passes"):
        paged_attention(MODULE, *tensors(batch=1), None)
    with pytest.raises(errors.ArgumentError, match="cu_seq_lens_q expected"):
        paged_attention(MODULE, *tensors(batch=1), None, cache=object())


@pytest.mark.parametrize(
    ("version", "contract"),
    [("5.17.0", "paged"), ("5.18.2", "paged"), ("5.19.0", "gathered"), ("5.24.0", "gathered"), ("5.25.0.dev0", "none")],
)
def test_each_release_has_its_contract(version, contract):
    assert release_of(version).contract == contract


def test_an_older_release_is_refused():
    with pytest.raises(
        errors.UnsupportedError, match=r"transformers\.register: transformers expected 5\.17 or later, got 4\.57"
    ):
        release_of("4.57.6")


@pytest.mark.parametrize("call", ["register", "names", "use_continuous_batching"])
def test_without_transformers_each_entry_says_how_to_get_it(monkeypatch, call):
    import sys

    import opfacade.integrations.transformers as ours

    monkeypatch.setitem(sys.modules, "transformers", None)
    given = (object(),) if call == "use_continuous_batching" else ()
    with pytest.raises(errors.UnsupportedError, match=r"transformers expected to be installed.*pip install.*OPF-I006"):
        getattr(ours, call)(*given)


@pytest.mark.parametrize("version", ["", "unknown", "5", "five.18"])
def test_a_version_that_is_no_version_is_refused(version):
    with pytest.raises(errors.UnsupportedError, match=r"transformers expected 5\.17 or later.*OPF-I005"):
        release_of(version)
