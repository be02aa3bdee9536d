"""Tables of angles against the frequencies of transformers: stored ones and those of the installed release."""

import json
import math
from pathlib import Path

import mpmath
import pytest
import torch

from opfacade.errors import ArgumentError
from opfacade.plans.rotary import rotary_frequencies, rotary_table

STORED = json.loads((Path(__file__).parents[2] / "data/rotary_transformers_5.24.json").read_text())["tables"]
IDS = [f"{row['kind']}-{row['rotary_dim']}-{i}" for i, row in enumerate(STORED)]


def made(row, positions, **more):
    scaling = {"seq_len": positions} | row["scaling"]
    return rotary_table(row["kind"], rotary_dim=row["rotary_dim"], max_positions=positions, base=row["base"], **scaling, **more)


def frequencies(row):
    """(frequencies, lengths) of the table, from its row for position 1, where each angle is less than half a turn."""
    half = row["rotary_dim"] // 2
    table = made(row, 2).double()
    size = torch.hypot(table[1, :half], table[1, half:])
    return torch.atan2(table[1, half:], table[1, :half]), size


@pytest.mark.parametrize("row", STORED, ids=IDS)
def test_frequencies_and_factors_equal_those_of_transformers(row):
    """The tolerance covers the rounding errors of f32 steps."""
    got, size = frequencies(row)
    torch.testing.assert_close(got, torch.tensor(row["frequencies"], dtype=torch.float64), rtol=3e-6, atol=1e-9)
    torch.testing.assert_close(size, torch.full_like(size, row["attention_factor"]), rtol=2e-7, atol=0)
    assert made(row, 2)[0].tolist() == pytest.approx([row["attention_factor"]] * len(got) + [0.0] * len(got), rel=1e-7)


def test_the_kinds_differ_and_ntk_does_not_scale_a_short_sequence():
    found = {tuple(frequencies(row)[0].tolist()) for row in STORED}
    assert len(found) == len(STORED)
    plain = rotary_table(rotary_dim=128, max_positions=3)
    short = rotary_table("ntk", rotary_dim=128, max_positions=3, factor=2.0, max_position_embeddings=4096)
    assert torch.equal(plain, short)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_cosines_of_far_positions_are_correctly_rounded(dtype):
    table = rotary_table(rotary_dim=8, max_positions=200_001, base=10000.0, dtype=dtype)
    with mpmath.workdps(40):
        for position in (0, 1, 777, 131_071, 200_000):
            for pair in range(4):
                angle = position * mpmath.mpf(10000) ** (-mpmath.mpf(pair) / 4)
                for column, wanted in ((pair, mpmath.cos(angle)), (4 + pair, mpmath.sin(angle))):
                    want = torch.tensor(float(wanted), dtype=torch.float64)
                    got = table[position, column]
                    near = abs(float(got) - float(wanted)) <= torch.finfo(table.dtype).eps * abs(float(wanted)) * 0.51 + 1e-10
                    assert near, (position, pair, got, want)


def test_a_ramp_of_yarn_may_end_beyond_the_last_pair():
    """131072 positions: a pair that turns once would be number 34.6 of 32, so that no pair is divided by the whole factor."""
    dim, length, factor = 64, 131072, 4.0
    first, last = (dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(10000.0)) for turns in (32, 1))
    pair = torch.arange(dim // 2, dtype=torch.float64)
    ramp = ((pair - math.floor(first)) / (math.ceil(last) - math.floor(first))).clamp(0, 1)
    want = 10000.0 ** (-2 * pair / dim) * (1 - ramp + ramp / factor)
    row = {"kind": "yarn", "rotary_dim": dim, "factor": factor, "original_max_position_embeddings": length}
    got, _ = rotary_frequencies(**row)
    assert 0 < ramp[-1] < 1
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("length", "factor", "each"), [(16, 1.25, [1.0, 2.0]), (17, 1.5, [4.0, 8.0])])
def test_longrope_may_have_a_cosine_factor_per_length(length, factor, each):
    """As in PhiMoE: the long factors apply beyond the training positions, without a ratio of lengths."""
    scales = {"short_mscale": 1.25, "long_mscale": 1.5, "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}
    table = rotary_table("longrope", rotary_dim=4, max_positions=length, original_max_position_embeddings=16, **scales)
    assert table[0].tolist() == [factor, factor, 0, 0]
    angles = torch.tensor([1.0, 0.01], dtype=torch.float64) / torch.tensor(each, dtype=torch.float64)
    torch.testing.assert_close(table[1].double(), factor * torch.cat([angles.cos(), angles.sin()]), rtol=1e-7, atol=0)


@pytest.mark.transformers
@pytest.mark.parametrize("length", [12, 40])
def test_cosine_factors_equal_those_of_phimoe(length):
    from transformers.models.phimoe.configuration_phimoe import PhimoeConfig
    from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

    scales = {
        "short_mscale": 1.25,
        "long_mscale": 1.5,
        "short_factor": [1.0, 2.0, 3.0, 4.0],
        "long_factor": [4.0, 8.0, 9.0, 11.0],
    }
    given = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16, "factor": 4.0}
    config = PhimoeConfig(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=64, rope_parameters={**given, **scales}
    )
    cos, sin = PhimoeRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    table = rotary_table("longrope", rotary_dim=8, max_positions=length, original_max_position_embeddings=16, **scales)
    wanted = torch.cat([cos[0, :, :4], sin[0, :, :4]], -1)
    torch.testing.assert_close(torch.hypot(*table.chunk(2, -1)), torch.hypot(*wanted.chunk(2, -1)), rtol=3e-7, atol=0)
    if length <= 16:  # this release of the model uses the frequencies of short sequences for long sequences too
        torch.testing.assert_close(table, wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.transformers
@pytest.mark.parametrize("row", STORED, ids=IDS)
def test_frequencies_equal_those_of_the_installed_transformers(row):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling, dim, kind = dict(row["scaling"]), row["rotary_dim"], {"ntk": "dynamic"}.get(row["kind"], row["kind"])
    length, most = scaling.pop("seq_len", None), scaling.pop("max_position_embeddings", 131072)
    config = LlamaConfig(
        hidden_size=4 * dim, num_attention_heads=4, head_dim=dim, max_position_embeddings=most,
        rope_parameters={"rope_type": kind, "rope_theta": row["base"], **scaling},
    )  # fmt: skip
    wanted, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    got, size = frequencies(row)
    torch.testing.assert_close(got, wanted.double(), rtol=3e-6, atol=1e-9)
    torch.testing.assert_close(size, torch.full_like(size, factor), rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("kind", "fields", "argument", "word"),
    [
        ("su", {}, "kind", "one of default"),
        ("linear", {}, "factor", "a value, because this kind requires it"),
        ("yarn", {"factor": 2.0}, "original_max_position_embeddings", "a value"),
        ("yarn", {"original_max_position_embeddings": 4096}, "max_position_embeddings", "a value"),
        ("llama3", {"factor": 8.0, "mscale_x": 1.0}, "mscale_x", "a parameter of llama3"),
        (
            "longrope",
            {"original_max_position_embeddings": 8, "short_factor": [1.0], "factor": 2.0},
            "short_factor",
            "4 numbers",
        ),
        ("default", {"rotary_dim": 7}, "rotary_dim", "an even number"),
        ("default", {"max_positions": -1}, "max_positions", "0 or more"),
    ],
)
def test_a_missing_or_unknown_parameter_is_named(kind, fields, argument, word):
    with pytest.raises(ArgumentError, match=word) as caught:
        rotary_table(kind, **{"rotary_dim": 8, "max_positions": 4} | fields)
    assert caught.value.code == "OPF-A047"
    assert caught.value.issues[0].argument == argument


def test_a_table_may_be_empty():
    assert rotary_table(rotary_dim=8, max_positions=0).shape == (0, 8)
