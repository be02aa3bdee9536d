"""When a measurement overrules the default: problems that share a measurement, the rule, and the treatment of noise."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opfacade import errors
from opfacade.select import decision as tuning
from opfacade.select.decision import MARGIN, Measured, TuningRow, clear, decide, summary, tuning_key
from opfacade.select.registry import descriptor_types, examples

DECODE = next(e for e in examples() if e.op == "paged_decode")


def measured(*times, noise=0.0):
    return [Measured(sku=f"sku-{i}", median_us=t, noise=noise, samples=20, worst=0.1) for i, t in enumerate(times)]


def choice(*times, noise=0.0, incumbent=None):
    return int(decide(measured(*times, noise=noise), incumbent).winner[-1])


def changed(**update):
    return DECODE.model_copy(update=update).revalidated()


# -- keys ------------------------------------------------------------------------------------------------------------


def test_sizes_share_a_key_up_to_a_power_of_two():
    assert tuning_key(changed(batch_size=9)) == tuning_key(changed(batch_size=16)) != tuning_key(changed(batch_size=17))
    assert tuning_key(changed(batch_size=0)) != tuning_key(changed(batch_size=1)) != tuning_key(changed(batch_size=2))


def test_what_costs_nothing_is_not_in_the_key():
    assert tuning_key(changed(sm_scale=0.3)) == tuning_key(DECODE)
    assert tuning_key(changed(logits_soft_cap=20.0)) == tuning_key(changed(logits_soft_cap=30.0)) != tuning_key(DECODE)


# Numbers that a kernel gets at each call, or constants that take no time.
COST_NOTHING = {
    "all_reduce_norm": "eps", "fused_moe": "alpha", "gated_activation": "limit", "grouped_matmul": "alpha", "matmul": "alpha",
    "mla_decode": "sm_scale", "moe_combine": "scale", "norm": "eps", "qkv_prepare": "eps", "softmax": "temperature",
}  # fmt: skip


@pytest.mark.parametrize("op", COST_NOTHING)
def test_a_number_that_takes_no_time_is_not_in_the_key(op):
    field = COST_NOTHING[op]
    example = next(e for e in examples() if e.op == op and (getattr(e, field) or 0) > 0)
    other = example.model_copy(update={field: 1.5 * getattr(example, field)}).revalidated()
    assert tuning_key(other) == tuning_key(example)


@pytest.mark.parametrize("op", ["fold", "map"])
def test_numbers_of_a_program_are_not_in_the_key(op):
    example = next(e for e in examples() if e.op == op and e.scalars)
    first, *others = example.scalars
    changed_first = first.model_copy(update={"value": first.value + 1})
    other = example.model_copy(update={"scalars": (changed_first, *others)}).revalidated()
    assert other != example
    assert tuning_key(other) == tuning_key(example)


@pytest.mark.parametrize("update", [{"num_qo_heads": 64}, {"kv_split": 100}, {"page_table": "block"}, {"return_lse": False}])
def test_what_makes_another_kernel_is_in_the_key(update):
    assert tuning_key(changed(**update)) != tuning_key(DECODE)


@pytest.mark.parametrize("update", [{"page_size": 32}, {"head_dim": 64}, {"dtype": "f16"}, {"layout": "NHD"}])
def test_what_makes_another_kernel_in_a_model_inside_is_in_the_key(update):
    inside = {name: value for name, value in update.items() if getattr(DECODE.paged_kv, name) != value}
    assert inside, "the example has this value"
    assert tuning_key(changed(paged_kv=DECODE.paged_kv.model_copy(update=inside).revalidated())) != tuning_key(DECODE)


def test_every_size_of_a_call_is_bucketed():
    """A field with such a name counts something in a call; it does not determine the kernel."""
    sizes = re.compile(r"batch_size|total_\w+|max_\w+|num_(total_\w+|states|rows|tokens|requests)")
    places = [place for kind in descriptor_types().values() for place in _places(kind.model_json_schema())]
    named = {name for place in places for name in place.get("properties", {}) if sizes.fullmatch(name)}
    bucketed = set().union(*(model.sizes for kind in descriptor_types().values() for model in _models(kind)))
    assert {"batch_size", "num_total_pages"} <= named <= bucketed


def _places(schema):
    return [schema, *schema.get("$defs", {}).values()]


def _models(kind):
    """A descriptor type and the models in its fields."""
    return [kind, *(f.annotation for f in kind.model_fields.values() if hasattr(f.annotation, "sizes"))]


# -- the rule --------------------------------------------------------------------------------------------------------


def test_the_first_is_the_incumbent_unless_another_is_named():
    assert choice(100, 99) == 0
    assert choice(100, 99, incumbent="sku-1") == 1
    assert choice(100, 99, incumbent="gone") == 0


@pytest.mark.parametrize(("time", "winner"), [(96.9, 1), (97.1, 0), (50, 1), (100, 0), (200, 0)])
def test_a_challenger_must_win_by_more_than_the_margin(time, winner):
    assert choice(100, time) == winner


@pytest.mark.parametrize(("noise", "winner"), [(0.04, 1), (0.06, 0)])
def test_a_challenger_must_win_by_more_than_the_noise_of_both(noise, winner):
    assert choice(100, 90, noise=noise) == winner


def test_of_equals_the_first_in_order_wins():
    assert choice(100, 80.5, 80) == 1
    assert choice(100, 85, 80) == 2
    assert choice(100, 97.5, 96.6) == 2  # the preceding equal one is within the margin of the incumbent


def test_an_incumbent_that_became_slow_is_replaced_by_the_default():
    assert choice(100, 110, incumbent="sku-1") == 0


@pytest.mark.parametrize(
    ("time", "is_clear"), [(100 * (1 - MARGIN), False), (100 * (1 - MARGIN) + 5, True), (50, True), (150, True)]
)
def test_a_choice_is_clear_if_no_challenger_is_near_the_margin(time, is_clear):
    assert clear(measured(100, time, noise=0.02)) is is_clear


def test_a_decision_tells_gain_and_noise():
    found = decide(measured(100, 80, noise=0.01))
    assert (found.winner, found.incumbent, round(found.gain, 3), round(found.noise, 6)) == ("sku-1", "sku-0", 0.2, 0.016)
    same = decide(measured(100, 99))
    assert (same.winner, same.gain) == ("sku-0", 0.0)


@given(st.lists(st.floats(1.0, 1e4), min_size=1, max_size=6), st.floats(0, 0.2))
def test_no_choice_is_slower_than_the_incumbent(times, noise):
    found = decide(measured(*times, noise=noise))
    by_name = {m.sku: m.median_us for m in measured(*times)}
    assert by_name[found.winner] <= by_name[found.incumbent] == times[0]
    assert found.winner == found.incumbent or found.gain > max(MARGIN, found.noise)


@given(st.lists(st.floats(1.0, 1e4), min_size=2, max_size=6))
def test_without_noise_the_choice_is_within_the_margin_of_the_best(times):
    by_name = {m.sku: m.median_us for m in measured(*times)}
    assert by_name[decide(measured(*times)).winner] * (1 - MARGIN) <= min(times) * (1 + tuning.TIE) * (1 + 1e-12)


# -- noise -----------------------------------------------------------------------------------------------------------


def test_few_samples_know_no_noise():
    assert summary([5.0]) == (5.0, 1.0)
    assert summary([5.0, 6.0, 7.0])[1] == 1.0


def test_equal_samples_have_no_noise():
    assert summary([5.0] * 12) == (5.0, 0.0)


def test_the_interval_holds_the_true_median_nineteen_times_in_twenty():
    rng, inside = random.Random(1), 0
    for _ in range(1000):
        middle, noise = summary([rng.lognormvariate(0, 0.05) for _ in range(30)])
        low, high = middle * (1 - 2 * noise), middle * (1 + 2 * noise)
        inside += low <= 1.0 <= high
    assert inside >= 950


def test_one_outlier_moves_nothing():
    assert summary([10.0] * 29 + [500.0]) == (10.0, 0.0)


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "update",
    [
        {"median_us": 0.0},
        {"median_us": -1.0},
        {"median_us": float("nan")},
        {"median_us": 1e300},
        {"noise": -0.1},
        {"samples": 0},
        {"worst": 1.5},
        {"sku": 7},
        {"more": 1},
    ],
)
def test_values_out_of_range_are_refused(update):
    with pytest.raises(errors.DescriptorError):
        Measured.model_validate({"sku": "a", "median_us": 1.0, "noise": 0.0, "samples": 3, "worst": 0.0} | update)


def test_a_row_survives_its_json():
    row = TuningRow(
        key="k", hardware="h", toolchain="t", require="r", date="2026-01-01", incumbent="sku-0", winner="sku-1", gain=0.2,
        noise=0.0, measured=tuple(measured(100, 80)),
    )  # fmt: skip
    assert TuningRow.model_validate_json(row.model_dump_json()) == row
