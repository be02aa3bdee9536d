"""Why a SKU changed: the facts that differ, the fields that cause it, and added or removed candidates."""

import pytest
from click.testing import CliRunner

from opfacade import Target, errors, explain_change
from opfacade.cli.main import main
from opfacade.select.registry import examples

SM90 = Target.parse("sm_90a")
DECODE = next(e for e in examples() if e.op == "paged_decode")
PREFILL = next(e for e in examples() if e.op == "paged_prefill")


def change(before, **update):
    return explain_change(before, before.model_copy(update=update).revalidated(), target=SM90)


def with_cache(descriptor, **update):
    return descriptor.model_copy(update={"paged_kv": descriptor.paged_kv.model_copy(update=update)}).revalidated()


def test_a_size_changes_no_kernel_and_is_told():
    found = change(DECODE, batch_size=17)
    assert found.same
    assert found.fields == {"batch_size": (16, 17)}
    assert (found.causes, found.facts) == ((), ())
    assert "the same kernel" in str(found)


def test_the_field_that_causes_a_change_is_told_from_one_that_does_not():
    found = change(DECODE, kv_split="off", batch_size=99)
    assert not found.same
    assert set(found.fields) == {"kv_split", "batch_size"}
    assert found.causes == ("kv_split",)
    assert "spec split: pieces -> off" in found.facts
    assert "because kv_split: 'auto' -> 'off'" in str(found)
    assert "also    batch_size: 16 -> 99" in str(found)


def test_a_nested_field_is_named_by_its_path():
    found = explain_change(DECODE, with_cache(DECODE, head_dim=64), target=SM90)
    assert found.causes == ("paged_kv.head_dim",)
    assert "spec head_dim: 128 -> 64" in found.facts


def test_a_candidate_that_is_refused_now_comes_with_its_reasons():
    found = explain_change(DECODE, with_cache(DECODE, head_dim=72), target=SM90)
    assert list(found.newly_refused) == ["cuda/split_kv"]
    assert "OPF-S003" in found.newly_refused["cuda/split_kv"][0]
    assert (found.before.backend, found.after.backend) == ("cuda", "reference")
    back = explain_change(with_cache(DECODE, head_dim=72), DECODE, target=SM90)
    assert list(back.newly_accepted) == ["cuda/split_kv"]


@pytest.mark.parametrize("back", [False, True])
def test_a_field_that_the_json_leaves_out_at_its_default_is_seen(back):
    pair = (DECODE, DECODE.model_copy(update={"sinks": True}).revalidated())
    found = explain_change(*(pair[::-1] if back else pair), target=SM90)
    assert found.fields == {"sinks": (True, False) if back else (False, True)}
    assert found.causes == ("sinks",)


def test_a_size_that_changes_the_split_is_the_cause():
    small = PREFILL.model_copy(update={"total_num_rows": 8, "batch_size": 1}).revalidated()
    large = PREFILL.model_copy(update={"total_num_rows": 9000, "batch_size": 1}).revalidated()
    found = explain_change(small, large, target=SM90)
    assert found.causes == ("total_num_rows",)


def test_fields_that_mean_something_only_together_cause_alone_nothing():
    before = DECODE.model_copy(update={"num_qo_heads": 5, "paged_kv": DECODE.paged_kv.model_copy(update={"num_kv_heads": 5})})
    after = DECODE.model_copy(update={"num_qo_heads": 14, "paged_kv": DECODE.paged_kv.model_copy(update={"num_kv_heads": 7})})
    found = explain_change(before.revalidated(), after.revalidated(), target=SM90)
    assert not found.same
    assert found.causes == ()


def test_descriptors_of_two_types_are_refused():
    with pytest.raises(errors.ArgumentTypeError, match="OPF-S034"):
        explain_change(DECODE, PREFILL, target=SM90)


def test_the_command_compares(tmp_path):
    (tmp_path / "a.json").write_text(DECODE.model_dump_json())
    (tmp_path / "b.json").write_text(DECODE.model_copy(update={"kv_split": "off"}).model_dump_json())
    result = CliRunner().invoke(
        main, ["explain", str(tmp_path / "b.json"), "--than", str(tmp_path / "a.json"), "--target=sm_90a"]
    )
    assert "because kv_split: 'auto' -> 'off'" in result.output
