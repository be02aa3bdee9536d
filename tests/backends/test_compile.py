"""Every template compiles for the oldest and the newest supported architecture, on a machine without a GPU, without spills."""

import json

import pytest

from opfacade import Plan, Preference, Target, explain, jit
from opfacade.jit import cache, toolchain
from opfacade.jit import sass as inspect
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.select.registry import examples
from opfacade.testing.families.attention.problems import VARIANTS
from tests.jit.sass_text import assert_read_alike

WIDE = PagedKvCacheDescriptor(num_total_pages=99, page_size=1, num_kv_heads=2, head_dim=256, dtype="bf16", layout="HND")
PLAIN = PagedKvCacheDescriptor(num_total_pages=99, page_size=16, num_kv_heads=2, head_dim=128, dtype="f32", layout="HND")
FP8 = PagedKvCacheDescriptor(num_total_pages=99, page_size=3, num_kv_heads=2, head_dim=256, dtype="f8_e5m2", layout="HND")
WIDE_RAGGED = {
    "batch_size": 2,
    "total_num_rows": 900,
    "total_kv_rows": 900,
    "num_qo_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 128,
}
VARIED = tuple(
    BatchRaggedPrefillDescriptor(**WIDE_RAGGED, causal=True, dtype="bf16", kv_split="off", variant=variant, custom_mask=masked)
    for variant, masked in (*((v, False) for v in VARIANTS), (None, True), (VARIANTS[4], True))
)


def tight_decode(dim, dtype):
    """Options with high register use, where up to eight heads are columns and most blocks share an SM."""
    cache = PagedKvCacheDescriptor(num_total_pages=9000, page_size=3, num_kv_heads=2, head_dim=dim, dtype=dtype, layout="HND")
    fp8 = {"q_dtype": "bf16", "kv_scale": "head"} if dtype.startswith("f8") else {}
    more = {"window_left": 900, "logits_soft_cap": 9.0, "sinks": True, "page_table": "block"}
    return BatchPagedDecodeDescriptor(batch_size=40, num_qo_heads=16, paged_kv=cache, **fp8, **more)


MORE = (  # cases that EXAMPLES do not contain: head_dim 256, f32 decode, no split, a group of more than 16
    BatchPagedPrefillDescriptor(batch_size=1, total_num_rows=900, num_qo_heads=26, causal=True, paged_kv=WIDE, kv_split=512),
    BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=40, paged_kv=WIDE, kv_split="off", return_lse=False),
    BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=10, paged_kv=PLAIN, window_left=5),
    BatchPagedDecodeDescriptor(batch_size=40, num_qo_heads=40, paged_kv=WIDE, logits_soft_cap=9.0),
    BatchPagedDecodeDescriptor(batch_size=40, num_qo_heads=32, paged_kv=FP8, q_dtype="bf16", kv_scale="head", sinks=True),
    BatchPagedDecodeDescriptor(  # maximum register use of a decode
        batch_size=40, num_qo_heads=66, paged_kv=FP8, q_dtype="bf16", kv_scale="head", window_left=900, logits_soft_cap=9.0
    ),
    BatchPagedPrefillDescriptor(  # threads that widen rows of 256 have the fewest free registers
        batch_size=40,
        total_num_rows=900,
        num_qo_heads=32,
        causal=True,
        paged_kv=FP8,
        q_dtype="bf16",
        kv_scale="head",
        window_left=900,
        logits_soft_cap=9.0,
        kv_split=512,
    ),
    *(
        tight_decode(dim, dtype)
        for dim, dtype in ((128, "f8_e4m3"), (64, "f8_e5m2"), (64, "bf16"), (256, "f8_e4m3"), (256, "f16"))
    ),
)


CUDA = Preference(backend="cuda")
ARCHS = ("sm_80", "sm_90a")


def kernels():
    """(descriptor, architecture, template) of each problem that a kernel accepts."""
    for descriptor in (*examples(), *MORE, *VARIED):
        for arch in ARCHS:
            if explain(descriptor, CUDA, Target.parse(arch)).chosen is not None:
                plan = Plan.select(descriptor, CUDA, target=Target.parse(arch))
                for spec in () if plan.jit_spec is None else (plan.jit_spec,):  # the other implementations have no template
                    yield descriptor, arch, spec.template


def params():
    """The kernels with the highest register use, and the first and the last kernel of each template and architecture: the first
    is ordinary, the last is odd or has most options. The others are slow to compile; a spill is also refused in each kernel
    that another test builds."""
    found = list(kernels())
    first = {(arch, template): descriptor for descriptor, arch, template in reversed(found)}
    last = {(arch, template): descriptor for descriptor, arch, template in found if arch == ARCHS[1]}
    for descriptor, arch, template in found:
        due = descriptor in MORE or any(descriptor is of.get((arch, template)) for of in (first, last))
        yield pytest.param(descriptor, arch, id=f"{descriptor.op}-{arch}", marks=() if due else pytest.mark.heavy)


# Some of their examples only run on the reference, or need a group of ranks.
NOT_ALL = {"matmul", "grouped_matmul", "fused_moe", "route", "mla_decode"}
OF_RANKS = {"collective", "merge_across", "logprob_across", "all_reduce_norm", "sample_across"}


def test_every_other_example_has_a_kernel(monkeypatch):
    monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda *_: None)  # independent of the installed compiler
    ours = [one for one in examples() if one.op not in NOT_ALL | OF_RANKS]
    assert [one for one in ours if explain(one, CUDA, Target.parse("sm_90a")).chosen is None] == []
    assert len(ours) > 80


@pytest.mark.parametrize(("descriptor", "arch"), list(params()))
def test_every_template_compiles_without_spills(descriptor, arch):
    plan = Plan.select(descriptor, CUDA, target=Target.parse(arch))
    plan.compile()
    library = jit.build(plan._candidate.jit_spec(plan.descriptor, plan.target))
    facts = json.loads((library.parent / "meta.json").read_text())
    resources = facts["resources"]
    assert resources
    for kernel in resources.values() if isinstance(resources, dict) else resources:
        assert not any(value for name, value in kernel.items() if "spill" in name), kernel
    if facts["sass"] != "no wgmma":  # instructions of a spill have names that only a disassembler knows
        assert_known_without_a_disassembler(library.parent / "kernel.cubin")


def assert_known_without_a_disassembler(cubin):
    """A new opcode would make each build start a disassembler: it belongs in opfacade/jit/sass/opcodes.py."""
    assert not inspect.is_doubtful(cubin.read_bytes())
    tools = toolchain.find(cache.toolchain_memo())
    if toolchain.find_disassembler(tools):
        assert_read_alike(cubin, tools)
