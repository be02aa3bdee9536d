"""Problems whose output bits are recorded: most are also compiled for other tests of the emulator, and lengths are short."""

from opfacade.core.target import Target
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor, Scaling, Weight
from opfacade.testing import matrix
from opfacade.testing.harness import harness_of
from opfacade.testing.inputs import DrawnLengths
from tests import emulator
from tests.emulator import test_emulated, test_emulated_fp8, test_emulated_mla, test_emulated_wgmma

_LENGTHS = (300, 65, 17, 0, 130, 1)


def emulated():
    """{name: (subject, lengths)}, at least one for every implementation of every op."""
    cases, latent = matrix.matrix(), test_emulated_mla.latent
    names = [*test_emulated.KINDS, "decode-teams", "prefill-pieces-causal", "pack_mask-0", "merge-odd", "merge-list-in-place"]
    descriptors = {name: cases[name] for name in names} | {
        "ragged, full, no split": test_emulated_wgmma.ragged(causal=False, kv_split="off"),
        "mla, TMA": latent(batch=3),
        "mla, fixed split": latent(16, 16, 4, 900, kv_split=64),
        "mla, two head blocks": latent(128, 64, 3, kv_split="off"),
        "mla, several rows": latent(16, 16, 4, 900, q_len=5, kv_split=64, window_left=100),
        "fp8 products, ragged": test_emulated_fp8.ragged(),
        "fp8 products, full": test_emulated_fp8.KINDS["full-f16"],
        "matrices in segments": MatmulDescriptor(total_num_rows=3, n=40, k=2100, dtype="bf16"),
        "matrices in segments, many rows": MatmulDescriptor(total_num_rows=3, n=40, k=2100, dtype="bf16", sm_limit=4),
        "matrices of fp8, blocks": _of_fp8(kind="block", block_offset=(64, 64)),
        "matrices of fp8, tokens": _of_fp8(kind="token"),
        "codes by rows of fp8": _codes_of_fp8(total_num_rows=5),
        "codes by rows of fp8, many rows": _codes_of_fp8(total_num_rows=140),
        "groups of fp8, blocks": _groups("f8_e4m3", kind="block"),
        "groups of i8, tokens": _groups("i8", kind="token"),
        "groups of k": GroupedMatmulDescriptor(
            groups=5, total_num_rows=70, n=136, k=472, dtype="bf16", layout="k", x_layout="km", weight_layout="kn"
        ),
        "groups of codes, some rows": GroupedMatmulDescriptor(
            groups=2, total_num_rows=70, n=136, k=1088, dtype="bf16", gather=True, num_x_rows=9,
            weight_format=Weight(dtype="uint4", group=64, zero="int", dequantise="rounded"),
        ),
        "groups with a tail of zeros": GroupedMatmulDescriptor(
            groups=5, total_num_rows=70, n=136, k=72, dtype="bf16", zero_tail=True
        ),
    }  # fmt: skip
    found = {name: (emulator.subject(one), lengths(one)) for name, one in descriptors.items()}
    for k in (320, 1088):  # a weight of codes for GPUs before sm_90: one chain, and segments
        mxfp4 = Weight(dtype="e2m1", scale_dtype="f8_e8m0", group=32, dequantise="exact")
        codes = MatmulDescriptor(total_num_rows=3, n=40, k=k, dtype="bf16", weight_format=mxfp4)
        found[f"matrices of codes before sm_90, k {k}"] = emulator.subject(codes, device_like=Target.parse("sm_89")), None
    found |= {name: (emulator.subject(one, device_like=Target.parse("sm_89")), None) for name, one in _copied().items()}
    covered = {_implementation(subject) for subject, _ in found.values()}
    for name, descriptor in cases.items():  # of other ops, the first case of each implementation
        subject = emulator.subject(descriptor)
        if not subject.declined and _implementation(subject) not in covered:
            covered.add(_implementation(subject))
            found[name] = (subject, lengths(descriptor))
    return found


def _of_fp8(**scaling):
    return MatmulDescriptor(total_num_rows=70, n=200, k=320, dtype="f8_e4m3", scaling=Scaling(**scaling))


def _codes_of_fp8(**more):
    codes = Weight(dtype="e2m1", scale_dtype="f8_e8m0", group=32, dequantise="group_sum")
    return MatmulDescriptor(n=72, k=640, dtype="f8_e4m3", scaling=Scaling(kind="token"), weight_format=codes, **more)


def _copied():
    """Products by mma.sync: codes of e4m3, and groups."""
    e4m3, int4 = Weight(dtype="f8_e4m3", scale_dtype="f32"), Weight(dtype="int4", group=32, dequantise="rounded")
    sizes, found = {"total_num_rows": 20, "n": 40, "dtype": "bf16"}, {}
    for k in (320, 1088):
        found[f"matrices of e4m3 before sm_90, k {k}"] = MatmulDescriptor(**sizes, k=k, weight_format=e4m3)
        for name, weight in (("codes", int4), ("e4m3", e4m3), ("rows before sm_90", None)):
            found[f"groups of {name}, k {k}"] = GroupedMatmulDescriptor(**sizes, groups=3, k=k, weight_format=weight)
    return found


def _groups(dtype, **scaling):
    sizes = {"groups": 5, "total_num_rows": 70, "n": 136, "k": 272}
    return GroupedMatmulDescriptor(**sizes, dtype=dtype, scaling=Scaling(**scaling), out_dtype="f16")


def _implementation(subject):
    return subject.plan.sku.op, subject.plan.sku.impl


def lengths(descriptor):
    """Lengths that take several tiles and leave some requests empty; None where the op's own draw is small."""
    if harness_of(descriptor).short_lengths(descriptor) is None:
        return None
    batch, kv, left = descriptor.batch_size, [], _tokens(descriptor)
    page = getattr(getattr(descriptor, "paged_kv", None), "page_size", 1)
    for request in range(batch):
        wanted = _LENGTHS[request] if request < len(_LENGTHS) else request % 2
        kv.append(wanted if -(-wanted // page) * page <= left else 0)
        left -= -(-kv[-1] // page) * page
    rows = getattr(descriptor, "total_num_rows", None)
    if rows is None:
        return DrawnLengths(kv=kv)
    q = [rows // batch] * batch
    q[-1] += rows - sum(q)
    return DrawnLengths(q=q, kv=kv)


def _tokens(descriptor):
    cache = getattr(descriptor, "paged_kv", None)
    return cache.num_total_pages * cache.page_size if cache else descriptor.total_kv_rows
