"""Messages list all issues, and each message states how to fix the call."""

import json
import pickle
import re

import pytest
import torch

from opfacade import Plan, Preference, Target, explain, load_descriptor
from opfacade.errors import (
    ArgumentTypeError,
    DescriptorError,
    FallbackWarning,
    FrozenError,
    OpfacadeError,
    UnsupportedError,
)
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    BatchPagedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor

CACHE = {"num_total_pages": 16, "page_size": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": "bf16", "layout": "HND"}
LATENT = {"num_total_pages": 8, "page_size": 4, "dtype": "bf16"}


def decode(**more):
    cache = PagedKvCacheDescriptor(**(CACHE | {"head_dim": more.pop("head_dim", 64)}))
    return BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=4, paged_kv=cache, **more)


def refusal(make, kind=DescriptorError):
    with pytest.raises(kind) as caught:
        make()
    return caught.value


def test_a_misspelled_demand_is_not_answered_with_its_opposite():
    error = refusal(lambda: Preference(require={"batch_invariant": "nonsense"}))
    assert "'none' or 'composition'" in error.issues[0].expected
    assert error.issues[0].hint == ""
    assert refusal(lambda: Preference(require={"batch_invariant": "compositional"})).issues[0].hint == "Use 'composition'."
    assert refusal(lambda: Preference(autotune="Off")).issues[0].hint == "Use 'off'."


def pools(layout, shape, **more):
    cache = PagedKvCacheDescriptor(num_total_pages=8, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout=layout)
    plan = BatchPagedDecodePlan.select(
        BatchPagedDecodeDescriptor(batch_size=1, num_qo_heads=4, paged_kv=cache, page_table="block", sinks=True)
    )
    k, lens = torch.zeros(shape, dtype=torch.bfloat16), torch.ones(1, dtype=torch.int32)
    given = {"q": torch.zeros(1, 4, 64, dtype=torch.bfloat16), "k_data": k, "v_data": k, "block_table": lens[:, None]}
    given |= {"kv_lens": lens, "sinks": torch.zeros(4), "o": torch.zeros(1, 4, 64, dtype=torch.bfloat16)}
    args = BatchPagedDecodeArgs(**given | {"lse": torch.zeros(1, 4)} | more)
    return {issue.argument: (issue.code, issue.hint) for issue in plan.can_implement(args).issues}


def test_a_pool_of_the_other_layout_is_told_that_it_fits_it():
    assert pools("NHD", (8, 2, 16, 64))["k_data"] == ("OPF-A011", 'It fits layout="HND".')
    assert pools("HND", (8, 16, 2, 64))["v_data"] == ("OPF-A011", 'It fits layout="NHD".')
    assert pools("HND", (8, 16, 3, 64))["v_data"] == ("OPF-A011", "")
    lse = pools("HND", (8, 2, 16, 64), lse=torch.zeros(4, 1))
    assert lse == {"lse": ("OPF-A011", "Its axes batch_size and num_qo_heads are exchanged.")}


def test_a_wrong_element_type_has_a_hint_for_what_is_read_and_what_is_written():
    sinks, out = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(1, 4, 64)
    assert pools("HND", (8, 2, 16, 64), sinks=sinks, o=out) == {
        "sinks": ("OPF-A010", "Use sinks.to(torch.float32), or select with another element type where the descriptor has one."),
        "o": ("OPF-A010", "Allocate o with dtype=torch.bfloat16, or select with another element type."),
    }


def test_every_missing_field_is_told():
    text = str(refusal(lambda: PagedKvCacheDescriptor(num_total_pages=16)))
    for name in ("page_size", "dtype", "num_kv_heads", "head_dim"):
        assert f"{name} expected a value, got nothing. [OPF-D004]" in text
    assert "layout expected a value, got nothing. " in text
    assert text.startswith("PagedKvCacheDescriptor: ")
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize("of_json", [False, True], ids=["made", "JSON of an older version"])
def test_a_layout_is_not_guessed_and_the_refusal_says_who_uses_which(of_json):
    fields = json.loads(decode().model_dump_json())
    del fields["paged_kv"]["layout"]
    error = refusal(lambda: load_descriptor(json.dumps(fields)) if of_json else BatchPagedDecodeDescriptor(**fields))
    (issue,) = error.issues
    assert (issue.argument, issue.code) == ("paged_kv.layout", "OPF-D004")
    nhd, _, hnd = issue.hint.partition(', or layout="HND"')
    assert 'layout="NHD" for pools [page, token, head, dim]' in nhd
    assert all(name in nhd for name in ("vLLM", "SGLang", "FlashInfer", "flash-attn"))
    assert "[page, head, token, dim]" in hnd
    assert "TensorRT-LLM" in hnd


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"dtype": "bfloat16"}, "Use 'bf16'."),
        ({"layout": "hnd"}, "Use 'HND'."),
        ({"page_sise": 4}, "Did you mean page_size? Fields: num_total_pages, page_size"),
        ({"block_size": 4}, "Did you mean page_size?"),
    ],
)
def test_a_hint_names_what_was_meant(wrong, hint):
    assert hint in str(refusal(lambda: PagedKvCacheDescriptor(**(CACHE | wrong))))


def test_a_field_of_a_model_inside_is_hinted_at():
    cache = CACHE | {"head_size": 64}
    error = refusal(lambda: BatchPagedDecodeDescriptor(batch_size=1, num_qo_heads=4, paged_kv=cache))
    assert "paged_kv.head_size expected no field with this name, got 64. Did you mean head_dim?" in str(error)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kv_lora_rank", "Did you mean latent_dim? "),
        ("qk_rope_head_dim", "Did you mean rope_dim? "),
        ("head_dim", "Did you mean latent_dim and rope_dim? "),
        ("num_kv_heads", ""),
        ("kv_scale", ""),
    ],
)
def test_names_of_other_libraries_for_a_latent_pool_are_known(name, hint):
    with pytest.raises(DescriptorError, match=re.escape(f"{name} expected no field with this name, got 1. {hint}Fields:")):
        PagedLatentCacheDescriptor(**(LATENT | {name: 1}))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kv_lora_rank", "Did you mean paged_kv? "),
        ("softmax_scale", "Did you mean sm_scale? "),
        ("num_kv_heads", ""),
        ("kv_scale", ""),
    ],
)
def test_names_of_other_libraries_for_latent_attention_are_known(name, hint):
    with pytest.raises(DescriptorError, match=re.escape(f"{name} expected no field with this name, got 1. {hint}Fields:")):
        BatchMlaDecodeDescriptor(batch_size=1, num_qo_heads=16, paged_kv=PagedLatentCacheDescriptor(**LATENT), **{name: 1})


def test_members_of_a_union_are_one_issue():
    error = refusal(lambda: decode(kv_split=0))
    assert str(error) == "BatchPagedDecodeDescriptor: kv_split expected 'auto' or 'off' or at least 1, got 0. [OPF-D002]"


def test_preferences_take_lists():
    assert Preference(forbid=["mma_tile"]) == Preference(forbid=("mma_tile",))
    assert hash(Preference(allow=["a"])) == hash(Preference(allow=("a",)))
    assert "Use ['mma_tile']." in str(refusal(lambda: Preference(forbid="mma_tile")))


def test_a_preference_has_its_own_label():
    assert str(refusal(lambda: Preference(sku="x"))).startswith(
        "Preference: sku expected no field with this name, got 'x'. Did you mean pin? Fields: backend, forbid,"
    )


def test_refusals_say_what_was_asked_for():
    text = str(explain(decode(), Preference(backend="cuda"), Target.cpu()))
    assert "backend is reference, you asked for cuda." in text
    forbidden = str(explain(decode(), Preference(forbid=["reference"]), Target.cpu()))
    assert "reference is forbidden, you asked for anything but reference." in forbidden
    strict = str(explain(decode(), Preference(require={"max_error_model": "exact"}), Target.cpu()))
    assert "max_error_model is attention-f32, you asked for exact." in strict


def test_a_wrong_pin_names_the_nearest_ids():
    right = Plan.select(decode(), target=Target.cpu()).sku.id
    error = refusal(lambda: Plan.select(decode(), Preference(pin=right[:-1] + "x"), Target.cpu()), UnsupportedError)
    assert error.code == "OPF-S012"
    assert f"nearest: {right}" in str(error)
    assert len(str(error).splitlines()) == 2
    many = refusal(lambda: Plan.select(decode(), Preference(pin="nonsense"), Target.parse("sm_90a")), UnsupportedError)
    assert many.code == "OPF-S012"
    assert len(str(many).splitlines()) <= 4


def test_a_pin_of_a_refused_kernel_says_why():
    pin = Plan.select(decode(), Preference(backend="cuda"), Target.parse("sm_90a")).sku.id
    error = refusal(lambda: Plan.select(decode(head_dim=80), Preference(pin=pin), Target.parse("sm_90a")), UnsupportedError)
    assert error.code == "OPF-S012"
    assert "refused: cuda/split_kv: head_dim=80" in str(error)


def test_a_fallback_carries_its_reason():
    with pytest.warns(FallbackWarning, match=r"cuda/split_kv: head_dim=80 \(allowed: .*explain\(descriptor\) has every reason"):
        Plan.select(decode(head_dim=80, window_left=17), target=Target.parse("sm_90a"))


def test_wrong_arguments_of_a_bundle_are_told():
    error = refusal(lambda: BatchPagedDecodeArgs(q=1, seq_lens=2), ArgumentTypeError)
    assert isinstance(error, TypeError)
    assert "seq_lens expected no argument with this name, got one. Did you mean kv_lens? Names: q, k_data," in str(error)
    assert [issue.argument for issue in error.issues] == ["seq_lens", "k_data", "v_data", "o"]
    named_elsewhere = refusal(lambda: BatchPagedDecodeArgs(q=1, cu_seqlens_k=2), ArgumentTypeError)
    assert "Did you mean kv_indptr?" in str(named_elsewhere)
    assert "keywords only, got 2 positional" in str(refusal(lambda: BatchPagedDecodeArgs(1, 2), ArgumentTypeError))


def test_constructors_answer_with_errors_of_ours():
    assert "Target.current()" in str(refusal(Target, ArgumentTypeError))
    assert "Plan.select(descriptor)" in str(refusal(Plan, ArgumentTypeError))
    assert "BatchPagedDecodePlan.select" in str(refusal(lambda: BatchPagedDecodePlan(decode()), ArgumentTypeError))
    assert "keywords only" in str(refusal(lambda: PagedKvCacheDescriptor(16, 16)))
    assert refusal(lambda: PagedKvCacheDescriptor(16, 16)).code == "OPF-D008"


def test_frozen_values_say_so():
    descriptor = decode()
    for change in (lambda: setattr(descriptor, "batch_size", 4), lambda: delattr(descriptor, "batch_size")):
        error = refusal(change, FrozenError)
        assert isinstance(error, AttributeError)
        assert "batch_size" in str(error)
    assert descriptor == decode()
    with pytest.raises(OpfacadeError, match="immutable"):
        Plan.select(descriptor, target=Target.cpu()).sku = None
    assert pickle.loads(pickle.dumps(descriptor)) == descriptor


@pytest.mark.parametrize(
    ("text", "hint"),
    [("sm90", "sm_90a"), ("90", "sm_90a"), ("9.0", "sm_90a"), ("H100", "sm_90a"), ("compute_89", "sm_89"), ("A100", "sm_80")],
)
def test_an_architecture_in_other_words_is_understood(text, hint):
    assert f'got {text!r}. Use "{hint}". [OPF-D010]' in str(refusal(lambda: Target.parse(text)))
    assert Target.parse(hint).arch == hint


@pytest.mark.parametrize("text", ["sm_", "tpu", "sm_9000", "11.7", ""])
def test_an_architecture_that_nothing_is_like_has_no_hint(text):
    assert "Use" not in str(refusal(lambda: Target.parse(text)))


def test_a_short_form_of_a_requirement_names_those_that_are():
    text = str(refusal(lambda: Preference(require="deterministc")))
    assert "require expected 'deterministic', 'bit_stable_on_same_hardware' or 'batch_invariant', or a Require" in text
    assert "Use 'deterministic'. [OPF-D002]" in text
    assert Preference(require="deterministic").require.deterministic


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (({"op": "paged_decode"},), "Read its JSON with load_descriptor. [OPF-S030]"),
        ((decode(), "cuda"), "Write Preference(backend='cuda'). [OPF-S032]"),
        ((decode(), None, "sm_90a"), "Write Target.parse('sm_90a'). [OPF-S033]"),
    ],
)
def test_text_where_a_value_is_taken_is_answered_with_the_call(arguments, hint):
    assert hint in str(refusal(lambda: Plan.select(*arguments), ArgumentTypeError))


def test_a_candidate_for_uneven_batches_says_how_long_a_request_must_be_able_to_be(monkeypatch):
    monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda *_: None)  # independent of the installed compiler
    cache = PagedKvCacheDescriptor(**(CACHE | {"page_size": 16, "num_total_pages": 512}))
    plain = BatchPagedPrefillDescriptor(batch_size=3, total_num_rows=700, num_qo_heads=4, causal=True, paged_kv=cache)
    reasons = [str(r) for option in explain(plain, target=Target.parse("sm_90a")).options for r in option.reasons]
    wanted = (
        "max_kv_len=8192 (allowed: 32768 or more tokens, for one of several requests, with kv_split=auto and without a window)"
    )
    assert any(reason.startswith(wanted) and reason.endswith("[OPF-S023]") for reason in reasons), reasons
