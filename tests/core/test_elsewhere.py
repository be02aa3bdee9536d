"""Names of other libraries: each is answered with its name in this library, and every name in the tables exists."""

import dataclasses
import importlib
import pkgutil

import pytest

import opfacade.plans
from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.elsewhere import FIELDS, OPERANDS
from opfacade.core.model import Model
from opfacade.errors import OpfacadeError
from opfacade.plans import attention, kv_cache, matmul, moe, norm, quantize, rotary, sampling

PREFILL, DECODE = attention.BatchPagedPrefillDescriptor, attention.BatchPagedDecodeDescriptor
ATTEND, APPEND = attention.BatchPagedPrefillArgs, kv_cache.PagedKvAppendArgs
FUSED, ROUTE = moe.FusedMoeDescriptor, moe.RouteDescriptor

MEANT = [
    (PREFILL, "sliding_window", "window_left (sliding_window - 1)"),
    (PREFILL, "kv_layout", "paged_kv (its layout)"),
    (attention.PagedKvCacheDescriptor, "kv_layout", "layout"),
    (attention.PagedKvCacheDescriptor, "block_size", "page_size"),
    (PREFILL, "s_aux", "sinks"),
    (DECODE, "num_kv_heads", "paged_kv (its num_kv_heads)"),
    (DECODE, "kv_cache_dtype", "paged_kv (its dtype)"),
    (DECODE, "num_attention_heads", "num_qo_heads"),
    (DECODE, "max_seq_len", "max_kv_len"),
    (ATTEND, "query_start_loc", "q_indptr"),
    (APPEND, "query_start_loc", "append_indptr"),
    (ATTEND, "key_cache", "k_data"),
    (ATTEND, "value_cache", "v_data"),
    (ATTEND, "block_table_tensor", "block_table"),
    (ATTEND, "seq_lens", "kv_lens"),
    (ATTEND, "k_descale", "k_scale"),
    (APPEND, "key", "k_new"),
    (rotary.QkvPrepareArgs, "slot_mapping", "slots"),
    (FUSED, "intermediate_size", "width"),
    (FUSED, "num_experts_per_tok", "top_k"),
    (FUSED, "scoring_func", "router (its score)"),
    (FUSED, "hidden_act", "activation"),
    (ROUTE, "renormalize", "renormalise"),
    (ROUTE, "num_expert_group", "groups"),
    (moe.FusedMoeArgs, "w13_weight", "up"),
    (moe.FusedMoeArgs, "topk_weights", "weights"),
    (moe.FusedMoeArgs, "router_logits", "logits"),
    (matmul.MatmulDescriptor, "m", "total_num_rows"),
    (matmul.MatmulDescriptor, "out_features", "n"),
    (matmul.MatmulDescriptor, "in_features", "k"),
    (matmul.MatmulDescriptor, "trans_b", "weight_layout"),
    (matmul.MatmulArgs, "scale_b", "weight_scale"),
    (norm.NormDescriptor, "rms_norm_eps", "eps"),
    (norm.NormDescriptor, "hidden_size", "hidden"),
    (norm.NormArgs, "hidden_states", "x"),
    (quantize.QuantizeDescriptor, "group_size", "quant (its group)"),
    (rotary.RotaryDescriptor, "is_neox", "interleaved (is_neox=True is interleaved=False)"),
    (rotary.RotaryArgs, "pos_ids", "positions"),
    (sampling.SampleDescriptor, "vocab_size", "vocab"),
    (sampling.SampleDescriptor, "batch_size", "total_num_rows"),
    (sampling.SampleDescriptor, "repetition_penalty", "penalties"),
    (sampling.SampleArgs, "temperatures", "temperature"),
    (sampling.VerifyDraftsDescriptor, "num_speculative_tokens", "num_drafts"),
    (sampling.VerifyDraftsArgs, "draft_token_ids", "draft_tokens"),
]


@pytest.mark.parametrize(("kind", "name", "meant"), MEANT, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_name_of_another_library_is_answered_with_the_name_here(kind, name, meant):
    with pytest.raises(OpfacadeError) as caught:
        kind(**{name: 1})
    (issue,) = [one for one in caught.value.issues if one.argument == name]
    assert issue.hint.startswith(f"Did you mean {meant}?")


def _subclasses(kind):
    for one in kind.__subclasses__():
        yield from (one, *_subclasses(one))


def _known():
    for module in pkgutil.iter_modules(opfacade.plans.__path__):
        importlib.import_module(f"opfacade.plans.{module.name}")
    args = [kind for kind in _subclasses(Args) if dataclasses.is_dataclass(kind)]
    fields = {name for kind in _subclasses(Model) for name in kind.model_fields}
    return {"field": fields, "operand": {field.name for kind in args for field in dataclasses.fields(kind)}}


@pytest.mark.parametrize(("table", "kind"), [(FIELDS, "field"), (OPERANDS, "operand")])
def test_every_name_that_a_hint_states_is_one(table, kind):
    known = _known()[kind]
    named = {name for meant in table.values() for one in meant.split("|") for name in one.partition(" (")[0].split(" and ")}
    assert named <= known
    inner = {one.partition(" (its ")[2].rstrip(")") for meant in table.values() for one in meant.split("|") if " (its " in one}
    assert inner <= known


def test_every_class_answers_with_these_tables():
    for kind in _subclasses(Descriptor):
        assert kind.elsewhere.keys() >= FIELDS.keys(), kind
    assert all(kind.elsewhere.keys() >= OPERANDS.keys() for kind in _subclasses(Args))


def test_a_kind_of_scales_by_another_name_is_answered():
    for value, meant in (("group", "block"), ("per_tensor", "tensor"), ("per_token", "token")):
        with pytest.raises(OpfacadeError) as caught:
            matmul.Scaling(kind=value)
        assert caught.value.issues[0].hint == f"Use {meant!r}."
