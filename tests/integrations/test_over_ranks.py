"""Calls of vLLM and SGLang over ranks: results against formulas in f64, fallbacks, and replaced names."""

import ast
import inspect
import math
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from opfacade import Target, errors
from opfacade.integrations.over_ranks import Heads, OverRanks, Rows
from opfacade.integrations.sglang import ranks as on_sglang
from opfacade.integrations.vllm import ranks as on_vllm
from tests.integrations import signatures
from tests.integrations.fakes import put
from tests.support.local_ranks import LocalGroup, on_ranks

HEADS, DIM, HIDDEN, EPS = 6, 16, 48, 1e-5
MERGE, NORM = Heads(HEADS, DIM, "f32"), Rows(HIDDEN, EPS, "bf16")


class Reserving(LocalGroup):
    """A group that records its reservations."""

    target = Target.cpu()

    def __init__(self, group):
        super().__init__(group.rank, group.world, group._shared)
        self.reserved = []

    def reserve(self, plans):
        self.reserved += plans


def served(world, call, **shapes):
    return on_ranks(world, lambda group: call(OverRanks(Reserving(group), (1, 4, 8), **shapes)))


def engine_group(ranks, world=None):
    return SimpleNamespace(world_size=world or ranks.group.world, rank_in_group=ranks.group.rank)


def never(*given, **named):
    raise AssertionError("the engine's own function ran")


def states(world, rows=3):
    """o and lse of each rank; rank 0 has no key of row 1."""
    g = torch.Generator().manual_seed(5)
    o, lse = torch.randn(world, rows, HEADS, DIM, generator=g), torch.randn(world, rows, HEADS, generator=g) * 3
    lse[0, 1] = -math.inf
    o[0, 1] = math.nan
    return o, lse


def merged(o, lse):
    """By hand, in f64: (o, lse) of all heads."""
    total = lse.double().logsumexp(0)
    weight = (lse.double() - total).exp()[..., None]
    return torch.where(weight == 0, 0.0, o.double() * weight).sum(0), total


def near(found, want):
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_a_merge_of_heads_gives_a_rank_its_heads(world):
    o, lse = states(world)
    want, total = merged(o, lse)

    def call(ranks):
        r, group = ranks.group.rank, engine_group(ranks)
        by_sglang = on_sglang.merge_of_heads(ranks, never)(o[r], lse[r], group, return_lse=True)
        latent = on_sglang.merge_of_latents(ranks, never)(o[r], lse[r] / math.log(2), group)
        natural = on_sglang.merge_of_latents(ranks, never)(o[r], lse[r], group, is_lse_base_on_e=True)
        by_vllm = on_vllm.merge_of_heads(ranks, never, lambda *given: None)
        in_base_2 = by_vllm(o[r], lse[r] / math.log(2), group, return_lse=True, is_lse_base_on_e=False)
        assert torch.equal(by_vllm(o[r], lse[r], group), by_sglang[0])
        return by_sglang, latent, natural, in_base_2

    for rank, (by_sglang, latent, natural, in_base_2) in enumerate(served(world, call, heads=MERGE)):
        own = slice(rank * HEADS // world, (rank + 1) * HEADS // world)
        for found in (by_sglang[0], latent, natural, in_base_2[0]):
            near(found, want[:, own])
        near(by_sglang[1], total[:, own])
        near(in_base_2[1], total[:, own] / math.log(2))


def test_rows_that_vllm_calls_empty_are_not_read():
    """The engine's lengths say that rank 1 has no key of request 0, whose rows are 0 and 1."""
    o, lse = states(2)
    lengths, starts = {0: torch.tensor([4, 0]), 1: torch.tensor([0, 3])}, torch.tensor([0, 2, 3])
    seen = []

    def empty(told, seq_lens, query_start_loc):
        seen.append(query_start_loc)
        told[: 2 if seq_lens[0] == 0 else 0] = -math.inf
        told[2 if seq_lens[1] == 0 else 3 :] = -math.inf

    def call(ranks):
        r = ranks.group.rank
        merge = on_vllm.merge_of_heads(ranks, never, empty)
        return merge(o[r], lse[r].clone(), engine_group(ranks), seq_lens=lengths[r], query_start_loc=starts)

    found = torch.cat(served(2, call, heads=MERGE), 1)
    cut = lse.clone()
    cut[1, :2], cut[0, 2] = -math.inf, -math.inf
    want, _ = merged(o.nan_to_num(), cut)
    near(found[[0, 2]], want[[0, 2]])
    assert (found[1] == 0).all()  # neither rank has keys of it
    assert all(one is starts for one in seen)


def terms(world, rows=3):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(world, rows, HIDDEN, generator=g).bfloat16()
    return x, torch.randn(rows, HIDDEN, generator=g).bfloat16(), torch.randn(HIDDEN, generator=g).bfloat16()


def normed(x, residual, weight):
    total = x.float().sum(0).bfloat16().float() + residual.float()
    scale = (total.double().square().mean(1, keepdim=True) + EPS).rsqrt()
    return total.double() * scale * weight.double(), total.bfloat16()


def test_a_fused_norm_is_that_of_sums_by_hand_and_writes_where_the_engine_reads():
    x, residual, weight = terms(2)
    want, total = normed(x, residual, weight)

    def call(ranks):
        own, kept = x[ranks.group.rank].clone(), residual.clone()
        by_sglang = on_sglang.fused_norm(ranks, never)(own, kept, weight, eps=EPS)
        assert torch.equal(kept, residual)
        assert torch.equal(own, x[ranks.group.rank])
        by_vllm = on_vllm.fused_norm(ranks, never)
        rest = (weight, EPS, 2, True, True, 2048, 1)
        first, second = (own[None].clone(), kept[None].clone()), (own.clone(), kept.clone())
        by_vllm(*first, *rest)
        out = torch.zeros_like(own)
        by_vllm(*second, *rest, norm_out=out)
        return [by_sglang, (first[0][0], first[1][0]), (out, second[0])]

    for found in served(2, call, norm=NORM):
        for norm, summed in found:
            torch.testing.assert_close(norm.double(), want, rtol=0.01, atol=0.01)
            assert torch.equal(summed, total)


def test_the_engines_own_function_runs_where_no_plan_fits():
    o, lse = states(2, rows=9)
    x, residual, weight = terms(2)

    def call(ranks):
        r, group, told = ranks.group.rank, engine_group(ranks), []
        own = lambda *given, **named: told.append((given, named))  # noqa: E731
        merge, norm = on_sglang.merge_of_heads(ranks, own), on_sglang.fused_norm(ranks, own)
        merge(o[r], lse[r], group, return_lse=True)  # more rows than reserved
        merge(o[r, :2].half(), lse[r, :2], group)  # another dtype
        merge(o[r, :2], lse[r, :2], engine_group(ranks, 4))  # another group
        norm(x[r], residual, weight, eps=0.5)
        norm(x[r], residual, weight, eps=EPS, use_attn_tp_group=False)
        on_vllm.fused_norm(ranks, own)(x[r], residual, weight, EPS, 2, True, True, 9, 1, quant_out=x[r])
        on_vllm.merge_of_heads(ranks, own, never)(o[r], lse[r], group, None, True, False)
        return told

    for told in served(2, call, heads=MERGE, norm=NORM):
        assert len(told) == 7
        assert told[0][1] == {"return_lse": True}
        assert told[3][0][3:] == (0.5, 2048, None, False, True, True)
        assert told[6][0][3:] == (None, True, False, None, None)


def test_plans_of_all_sizes_are_reserved_at_once():
    [one, _] = served(2, lambda ranks: ranks, heads=MERGE, norm=NORM)
    assert [(p.descriptor.op, p.descriptor.total_num_rows) for p in one.group.reserved] == [
        (op, rows) for op in ("merge_across", "all_reduce_norm") for rows in (1, 4, 8)
    ]


def cp_lse_ag_out_rs_mha(cp_attn_out, cp_attn_lse, cp_group, return_lse=False): ...
def cp_lse_ag_out_rs_mla(cp_attn_out, cp_attn_lse, cp_group, ctx=None, is_lse_base_on_e=False): ...
def flashinfer_allreduce_residual_rmsnorm(input_tensor, residual, weight): ...
def cp_lse_ag_out_rs(cp_attn_out, cp_attn_lse, cp_group): ...
def mask_dcp_empty_shards_(lse, seq_lens, query_start_loc): ...
def call_trtllm_fused_allreduce_norm(allreduce_in): ...


def test_every_module_of_sglang_that_has_a_function_by_name_gets_ours(monkeypatch):
    merges = {one.__name__: one for one in (cp_lse_ag_out_rs_mha, cp_lse_ag_out_rs_mla)}
    fused = {"flashinfer_allreduce_residual_rmsnorm": flashinfer_allreduce_residual_rmsnorm}
    put(monkeypatch, sglang={"__version__": "0.5.23"}, sglang__srt__layers__dcp__comm=merges, a_backend=merges)
    put(monkeypatch, sglang__srt__layers__flashinfer_comm_fusion=fused)
    for name, one in merges.items():  # this module has the names too: they are restored
        monkeypatch.setitem(globals(), name, one)
    on_sglang.use_ranks(attention=object(), norm=object())
    comm, backend = (sys.modules[name] for name in ("sglang.srt.layers.dcp.comm", "a_backend"))
    fusion = sys.modules["sglang.srt.layers.flashinfer_comm_fusion"]
    for name, own in merges.items():
        assert getattr(backend, name) is getattr(comm, name)
        assert getattr(comm, name).__wrapped__ is own
    assert fusion.flashinfer_allreduce_residual_rmsnorm.__wrapped__ is flashinfer_allreduce_residual_rmsnorm
    del comm.cp_lse_ag_out_rs_mla
    with pytest.raises(errors.UnsupportedError, match=r"OPF-I005"):
        on_sglang.use_ranks(attention=object())


SCHEMA = (
    "(Tensor(a!) allreduce_in, Tensor(b!) residual, Tensor rms_gamma, float rms_eps, int world_size, bool launch_with_pdl, "
    "bool fp32_acc, int max_token_num, int pattern_code, Tensor(c!)? norm_out=None, Tensor(d!)? quant_out=None, "
    "Tensor(e!)? scale_out=None, Tensor? scale_factor=None, float weight_bias=0.0) -> ()"
)


def test_the_op_of_vllms_fusion_pass_runs_ours(monkeypatch):
    x, residual, weight = terms(1)
    library = torch.library.Library("vllm", "FRAGMENT")
    library.define(on_vllm.FUSED + SCHEMA)
    library.impl(on_vllm.FUSED, never, "CPU")
    merges = {one.__name__: one for one in (cp_lse_ag_out_rs, mask_dcp_empty_shards_)}
    fusion = {"call_trtllm_fused_allreduce_norm": call_trtllm_fused_allreduce_norm}
    put(monkeypatch, vllm={"__version__": "0.33.0"}, vllm__v1__attention__ops__dcp=merges)
    put(monkeypatch, vllm__compilation__passes__fusion__allreduce_rms_fusion=fusion)
    monkeypatch.setitem(globals(), "cp_lse_ag_out_rs", cp_lse_ag_out_rs)
    [ranks] = served(1, lambda ranks: ranks, heads=MERGE, norm=NORM)
    on_vllm.use_ranks(attention=ranks, norm=ranks, device="CPU")
    assert sys.modules["vllm.v1.attention.ops.dcp"].cp_lse_ag_out_rs.__wrapped__ is merges["cp_lse_ag_out_rs"]
    given, kept = x[0].clone(), residual.clone()
    getattr(torch.ops.vllm, on_vllm.FUSED)(given, kept, weight, EPS, 1, True, True, 2048, 1)
    want, total = normed(x, residual, weight)
    torch.testing.assert_close(given.double(), want, rtol=0.01, atol=0.01)
    assert torch.equal(kept, total)
    on_vllm._libraries.clear()


@pytest.mark.parametrize(
    ("project", "place", "name", "make"),
    [
        ("sglang", "sglang.srt.layers.dcp.comm", "cp_lse_ag_out_rs_mha", on_sglang.merge_of_heads),
        ("sglang", "sglang.srt.layers.dcp.comm", "cp_lse_ag_out_rs_mla", on_sglang.merge_of_latents),
        (
            "sglang",
            "sglang.srt.layers.flashinfer_comm_fusion",
            "flashinfer_allreduce_residual_rmsnorm",
            on_sglang.fused_norm,
        ),
        ("vllm", "vllm.v1.attention.ops.dcp", "cp_lse_ag_out_rs", on_vllm.merge_of_heads),
        (
            "vllm",
            "vllm.compilation.passes.fusion.allreduce_rms_fusion",
            "call_trtllm_fused_allreduce_norm",
            on_vllm.fused_norm,
        ),
    ],
)
def test_our_functions_take_what_those_of_the_release_take(project, place, name, make):
    made = ast.parse(textwrap.dedent(inspect.getsource(make))).body[0]
    [inner] = [node for node in made.body if isinstance(node, ast.FunctionDef)]
    assert inner.name == name
    assert signatures.parameters(inner) == signatures.stored(project)["modules"][place][name]["parameters"]
