"""Values in the spelling of torch and of other libraries: torch dtypes, and None to disable an option."""

import pytest
import torch

from opfacade import Plan
from opfacade.core.dtypes import DTYPES, named
from opfacade.errors import DescriptorError
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import QuantizeDescriptor
from opfacade.plans.rotary import RotaryDescriptor
from opfacade.plans.sampling import AdjustLogitsDescriptor, SampleDescriptor
from opfacade.programs.fields import Input
from tests.core.test_descriptor import CACHE, DECODE, LATENT, MLA, PREFILL, RAGGED

ATTENTION = [
    (BatchPagedDecodeDescriptor, DECODE), (BatchPagedPrefillDescriptor, PREFILL), (BatchRaggedPrefillDescriptor, RAGGED),
    (BatchMlaDecodeDescriptor, MLA),
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_of_torch_has_its_name(name):
    assert named(getattr(torch, DTYPES[name].torch)) == name


@pytest.mark.parametrize("value", [None, "bf16", torch.complex64, torch.strided, torch.bfloat16.__class__, 3], ids=repr)
def test_anything_else_stays_what_it_is(value):
    assert named(value) is value


def test_a_dtype_of_torch_is_its_name_wherever_one_is_asked():
    cache = PagedKvCacheDescriptor(**(CACHE | {"dtype": torch.float16}))
    assert cache == PagedKvCacheDescriptor(**CACHE)
    assert cache.digest() == PagedKvCacheDescriptor(**CACHE).digest()
    decode = BatchPagedDecodeDescriptor(
        **(DECODE | {"q_dtype": torch.bfloat16, "paged_kv": CACHE | {"dtype": torch.float8_e5m2}})
    )
    assert (decode.q_dtype, decode.paged_kv.dtype) == ("bf16", "f8_e5m2")
    assert BatchPagedDecodeDescriptor.model_validate(dict(decode)) == decode
    assert (
        QuantizeDescriptor(total_num_rows=2, hidden=128, dtype=torch.bfloat16, quant={"dtype": torch.int8}).quant.dtype == "i8"
    )
    assert Input(name="x", dtype=torch.uint8).dtype == "u8"
    rotary = {
        "total_num_rows": 2,
        "num_qo_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 64,
        "rotary_dim": 64,
        "dtype": torch.bfloat16,
    }
    assert RotaryDescriptor(**rotary, positions=torch.int32).positions == "i32"
    assert MatmulDescriptor(total_num_rows=2, n=8, k=8, dtype=torch.bfloat16, out_dtype=torch.float32).out_dtype == "f32"


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=repr)
def test_a_dtype_that_a_field_does_not_have_is_refused(dtype):
    with pytest.raises(DescriptorError) as caught:
        PagedKvCacheDescriptor(**(CACHE | {"dtype": dtype}))
    assert caught.value.issues[0].argument == "dtype"


@pytest.mark.parametrize(("kind", "fields"), ATTENTION, ids=lambda x: getattr(x, "__name__", ""))
def test_none_is_no_window_and_no_cap(kind, fields):
    plain = kind(**fields)
    assert kind(**fields, window_left=None, logits_soft_cap=None) == plain
    assert (plain.window_left, plain.logits_soft_cap) == (-1, 0.0)
    assert kind(**fields, window_left=None).digest() == plain.digest()


@pytest.mark.parametrize("kind", [SampleDescriptor, AdjustLogitsDescriptor])
def test_none_is_no_soft_cap_of_logits(kind):
    assert kind(total_num_rows=2, vocab=100, soft_cap=None) == kind(total_num_rows=2, vocab=100)


def test_none_is_refused_where_it_means_nothing():
    for field in ("return_lse", "page_table", "num_qo_heads"):
        with pytest.raises(DescriptorError):
            BatchPagedDecodeDescriptor(**(DECODE | {field: None}))
    with pytest.raises(DescriptorError):
        PagedKvCacheDescriptor(**(CACHE | {"dtype": None}))


def test_a_named_plan_selects_what_plan_selects():
    desc = BatchPagedDecodeDescriptor(**DECODE)
    assert Plan.select(desc).sku == BatchPagedDecodePlan.select(desc).sku


def test_a_latent_pool_takes_a_dtype_of_torch():
    assert BatchMlaDecodeDescriptor(**(MLA | {"paged_kv": LATENT | {"dtype": torch.bfloat16}})).paged_kv.dtype == "bf16"


@pytest.mark.parametrize("name", ["num_tokens", "total_tokens", "nnz"])
@pytest.mark.parametrize("kind", [NormDescriptor, BatchPagedPrefillDescriptor, SampleDescriptor])
def test_what_others_call_the_rows_is_told_as_ours(kind, name):
    with pytest.raises(DescriptorError, match=rf"{name} expected no field with this name.* Did you mean total_num_rows\?"):
        kind(**{name: 5})
