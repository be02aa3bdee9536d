"""flash-attn's functions answer invalid values with an opfacade error that names the argument."""

import inspect

import numpy as np
import pytest
import torch

import opfacade.compat.flash_attn as flash_attn
from opfacade.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from opfacade.compat.flash_attn import rotary as angles
from opfacade.errors import ArgumentError, ArgumentTypeError, OpfacadeError, ShapeError, UnsupportedError


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def cached(**changed):
    """New rows of two requests, with angles, over pages."""
    k_cache, v_cache, (k, v) = torch.randn(6, 4, 2, 16), torch.randn(6, 4, 2, 16), torch.randn(2, 2, 2, 2, 16)
    given = {"q": torch.randn(2, 2, 4, 16), "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "causal": True}
    given |= {"rotary_cos": torch.randn(20, 8), "rotary_sin": torch.randn(20, 8), "cache_seqlens": i32(3, 8)}
    return given | {"block_table": i32([0, 1, 2], [3, 4, 5])} | changed


Q, K = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16)
QKV = torch.randn(2, 5, 3, 4, 16)
STARTS = {"cu_seqlens_q": i32(0, 3, 5), "cu_seqlens_k": i32(0, 3, 5), "max_seqlen_q": 3, "max_seqlen_k": 3}
PAGES = torch.randn(6, 4, 2, 16)
CALLS = {
    "dense": (flash_attn_func, {"q": Q, "k": K, "v": K}),
    "varlen": (flash_attn_varlen_func, {"q": Q[0], "k": K[0], "v": K[0]} | STARTS),
    "pages": (
        flash_attn_varlen_func,
        {"q": Q[0], "k": PAGES, "v": PAGES}
        | STARTS
        | {"cu_seqlens_k": None, "max_seqlen_k": 5, "block_table": i32([0, 1], [2, 3]), "seqused_k": i32(5, 2)},
    ),
    "appended": (flash_attn_with_kvcache, cached()),
    "rows of a cache": (
        flash_attn_with_kvcache,
        {
            "q": Q,
            "k_cache": K,
            "v_cache": K,
            "cache_seqlens": i32(2, 5),
            "cache_batch_idx": i32(1, 0),
            "cache_leftpad": i32(0, 1),
        },
    ),
    "qkv": (flash_attn.flash_attn_qkvpacked_func, {"qkv": QKV}),
    "kv": (flash_attn.flash_attn_kvpacked_func, {"q": Q, "kv": QKV[:, :, 1:]}),
    "varlen qkv": (flash_attn.flash_attn_varlen_qkvpacked_func, {"qkv": QKV[0], "cu_seqlens": i32(0, 3, 5), "max_seqlen": 3}),
    "varlen kv": (flash_attn.flash_attn_varlen_kvpacked_func, {"q": Q[0], "kv": QKV[0, :, 1:]} | STARTS),
}
WITHOUT_EFFECT = {"deterministic", "pack_gqa", "sm_margin", "scheduler_metadata", "max_seqlen_q"}
ALSO = {"out": "o"}  # names in the plan's args
NO_TENSORS = {
    "None": None,
    "text": "x",
    "list": [1, 2],
    "rank": torch.zeros(1, 1, 1, 1, 1, 1),
    "sparse": torch.eye(4).to_sparse(),
}
NO_SCALARS = {"tensor": torch.zeros(2), "list": [1.5, []], "array": np.zeros((2, 3))}


def answers(call, argument, values):
    """How the function answers each value: an empty text if it returns, else its error."""
    function, given = CALLS[call]
    found = {}
    for name, value in values.items():
        own = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in given.items()}
        try:
            function(**(own | {argument: value}))
            found[name] = ""
        except OpfacadeError as error:
            found[name] = str(error)
    return found


def is_tensor(parameter):
    return "Tensor" in str(parameter.annotation) and "int" not in str(parameter.annotation)


@pytest.mark.parametrize("call", CALLS)
def test_every_argument_of_another_kind_is_refused(call):
    function, given = CALLS[call]
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if name in WITHOUT_EFFECT:
            continue
        values = NO_TENSORS if is_tensor(parameter) else NO_SCALARS
        found = answers(call, name, values)
        returned = {value for value, message in found.items() if not message}
        optional = {"None"} if parameter.default is None or given.get(name) is None else set()
        lengths = {"tensor"} if name in ("max_seqlen_k", "max_seqlen") else set()
        assert returned <= optional | lengths, (name, returned)
        for value in set(found) - returned - {"None"}:
            assert any(f" {told}" in found[value] for told in (name, ALSO.get(name, name))), (name, value, found[value])


@pytest.mark.parametrize("truth", [True, 1, np.True_, np.int64(1)])
def test_truths_of_python_and_numpy(truth):
    want = flash_attn_func(Q, K, K, causal=True, return_attn_probs=True)
    found = flash_attn_func(Q, K, K, causal=truth, return_attn_probs=truth)
    assert torch.equal(found[0], want[0])
    same = cached()
    outs = [
        flash_attn_with_kvcache(**(same | {"k_cache": PAGES.clone(), "v_cache": PAGES.clone(), "rotary_interleaved": one}))
        for one in (True, truth)
    ]
    assert torch.equal(*outs)


@pytest.mark.parametrize("text", ["no", "False", "", None, 2, -1, 1.0, torch.tensor(1), np.ones(1, dtype=bool)])
def test_nothing_else_is_a_truth(text):
    for flag in ("causal", "return_attn_probs"):
        with pytest.raises(ArgumentError, match=rf"{flag} expected True or False"):
            flash_attn_func(Q, K, K, **{flag: text})
    for flag in ("causal", "rotary_interleaved", "return_softmax_lse"):
        with pytest.raises(ArgumentError, match=rf"{flag} expected True or False"):
            flash_attn_with_kvcache(**cached(**{flag: text}))


@pytest.mark.parametrize(
    ("lengths", "changed"),
    [
        (i32(3, 8), {"rotary": 9}),  # the last of two new rows has no angles
        (i32(3, 8), {"rotary": 10, "rows": 3}),  # only q exceeds the table
        (8, {"rotary": 9}),
        (i32(0, 0), {"rotary": 0}),
        (i32(-1, 3), {"rotary": 20}),
    ],
)
def test_angles_end_before_the_positions(lengths, changed):
    given = cached(cache_seqlens=lengths, q=torch.randn(2, changed.get("rows", 2), 4, 16))
    given |= {name: torch.randn(changed["rotary"], 8) for name in ("rotary_cos", "rotary_sin")}
    before = given["k_cache"].clone()
    with pytest.raises(ArgumentError, match=r"with_kvcache\.call: cache_seqlens expected lengths that leave \d more positions"):
        flash_attn_with_kvcache(**given)
    assert torch.equal(given["k_cache"], before)


def test_the_last_angles_are_enough():
    assert flash_attn_with_kvcache(**cached(rotary_cos=torch.randn(10, 8), rotary_sin=torch.randn(10, 8))).isfinite().all()
    fixed = cached(causal=False, q=torch.randn(2, 9, 4, 16), rotary_cos=torch.randn(10, 8), rotary_sin=torch.randn(10, 8))
    assert flash_attn_with_kvcache(**fixed).isfinite().all()  # all rows of q use the angles of the first new token


def test_where_lengths_are_not_read_the_last_angles_stand_in():
    """Only the rotation, which is the part that a GPU executes."""
    rotary = angles.rotary_of("op", torch.randn(4, 8), torch.randn(4, 8), True, torch.device("cpu"))
    q, past, last = torch.randn(1, 3, 2, 16), torch.tensor([[2, 3, 9]]), torch.tensor([[2, 3, 3]])
    assert torch.equal(angles.rotated(q, rotary, past), angles.rotated(q, rotary, last))


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"q": torch.randn(3, 2, 4, 16)}, ShapeError, "block_table"),
        ({"q": torch.randn(2, 2, 4, 8)}, ShapeError, "q"),
        ({"q": torch.randn(2, 2, 4, 16, device="meta")}, ArgumentError, "q"),
        ({"q": torch.ones(2, 2, 4, 16, dtype=torch.int32)}, UnsupportedError, "q"),
        ({"rotary_cos": torch.randn(20, 8, device="meta")}, ArgumentError, "rotary_cos"),
        ({"rotary_sin": torch.randn(20, 8, device="meta")}, ArgumentError, "rotary_sin"),
        ({"rotary_sin": torch.ones(20, 8, dtype=torch.int32)}, UnsupportedError, "rotary_sin"),
        ({"rotary_cos": torch.randn(20, 9), "rotary_sin": torch.randn(20, 9)}, OpfacadeError, "rotary_dim"),
        ({"block_table": None, "cache_batch_idx": i32(0, 1, 2)}, ShapeError, "cache_batch_idx"),
        ({"page_table": i32(0, 1)}, ShapeError, "page_table"),
        ({"cache_batch_idx": "x"}, ArgumentTypeError, "cache_batch_idx"),
    ],
)
def test_what_does_not_fit_is_named_before_q_is_rotated(changed, error, named):
    given = cached(**changed)
    before = given["k_cache"].clone()
    with pytest.raises(error, match=rf"\b{named} expected"):
        flash_attn_with_kvcache(**given)
    assert torch.equal(given["k_cache"], before)


def test_angles_without_a_window():
    want, (k_cache, v_cache) = cached(causal=False, window_size=(-1, -1)), torch.randn(2, 6, 4, 2, 16)
    outs = [
        flash_attn_with_kvcache(**(want | {"window_size": window, "k_cache": k_cache.clone(), "v_cache": v_cache.clone()}))
        for window in ((-1, -1), None)
    ]
    assert torch.equal(*outs)


@pytest.mark.parametrize("longest", [-9, 2**31, 2**70, True, 7.0, "x", [3]])
def test_the_longest_request_is_an_integer(longest):
    for call in ("varlen", "pages"):
        function, given = CALLS[call]
        with pytest.raises(ArgumentError, match=r"max_seqlen_k expected (0 to 2147483647 tokens|an integer), got "):
            function(**(given | {"max_seqlen_k": longest}))
    with pytest.raises(ArgumentError, match=r"max_seqlen_k expected (0 to 2147483647 tokens|an integer), got "):
        flash_attn.flash_attn_varlen_qkvpacked_func(QKV[0], i32(0, 3, 5), longest)


@pytest.mark.parametrize("longest", [np.int64(3), 3, 2**31 - 1, torch.tensor(3), None])
def test_bounds_of_numpy_and_in_tensors(longest):
    function, given = CALLS["varlen"]
    assert torch.equal(function(**(given | {"max_seqlen_k": longest})), function(**given))


def test_packed_tensors_have_as_many_parts_as_their_name_says():
    with pytest.raises(ShapeError, match=r"varlen_qkvpacked_func\.call: qkv expected \[total, 3, nheads, headdim\], got"):
        flash_attn.flash_attn_varlen_qkvpacked_func(QKV[0, :, 1:], i32(0, 3, 5), 3)
    with pytest.raises(ShapeError, match=r"flash_attn_qkvpacked_func\.call: qkv expected"):
        flash_attn.flash_attn_qkvpacked_func(QKV[:, :, 1:])
    with pytest.raises(ShapeError, match=r"flash_attn_kvpacked_func\.call: kv expected"):
        flash_attn.flash_attn_kvpacked_func(Q, QKV)
    with pytest.raises(ShapeError, match=r"varlen_kvpacked_func\.call: kv expected"):
        flash_attn.flash_attn_varlen_kvpacked_func(Q[0], QKV[0], i32(0, 3, 5), i32(0, 3, 5), 3, 3)
