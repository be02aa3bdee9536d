"""SGLang's buffers and factors are checked when the backend is created, not at the first step."""

import pytest
import torch

from opfacade import errors
from tests.integrations.fakes import sglang as fake
from tests.integrations.test_sglang import DIM, KV_HEADS, Server
from tests.integrations.test_sglang import sglang as sglang


def buffers(k, v=None, layout=None):
    pool = fake.MHATokenToKVPool([k], [k if v is None else v])
    pool.kv_cache_layout = layout or pool.kv_cache_layout
    return pool


TOKENS, FP8 = torch.zeros(120, KV_HEADS, DIM), torch.zeros(120, KV_HEADS, DIM, dtype=torch.float8_e4m3fn)
PAGES = torch.zeros(30, KV_HEADS, 4, DIM)


@pytest.mark.parametrize(
    ("pool", "factors", "name"),
    [
        (buffers(PAGES, layout="nhd"), {}, "k_buffer"),
        (buffers(TOKENS, layout="hnd"), {}, "k_buffer"),
        (buffers(PAGES.transpose(1, 2), layout="hnd"), {}, "k_buffer"),
        (buffers(TOKENS[:-1]), {}, "k_buffer"),
        (buffers(TOKENS[..., :8]), {}, "k_buffer"),
        (buffers(TOKENS[:, :1].expand(-1, 3, -1)), {}, "k_buffer"),
        (buffers(TOKENS.flatten(1)), {}, "k_buffer"),
        (buffers(TOKENS, TOKENS[:-4]), {}, "v_buffer"),
        (buffers(TOKENS, FP8), {}, "v_buffer"),
        (buffers(TOKENS.to(torch.uint8)), {}, "kv_cache_dtype"),
        (buffers(FP8), {"k_scale": torch.ones(2), "v_scale": torch.ones(1)}, "k_scale"),
        (buffers(FP8), {"k_scale": torch.ones(1), "v_scale": None}, "v_scale"),
        (buffers(FP8), {"k_scale": torch.ones(1), "v_scale": torch.ones(2)}, "v_scale"),
    ],
)
def test_buffers_and_factors_that_no_step_could_read_are_refused_at_start(sglang, pool, factors, name):
    runner = Server(4, (9,), (1,)).runner(token_to_kv_pool=pool, model=torch.nn.ModuleList([fake.RadixAttention(**factors)]))
    with pytest.raises(errors.UnsupportedError, match=rf"sglang\.attention: {name} expected .* in layer 0"):
        sglang(runner)


@pytest.mark.parametrize(
    ("pool", "factors"),
    [
        (buffers(TOKENS), {}),
        (buffers(TOKENS), {"k_scale": torch.ones(1), "v_scale": torch.ones(1)}),
        (buffers(TOKENS.half()), {"k_scale": torch.ones(3), "v_scale": None}),
        (buffers(PAGES, layout="hnd"), {}),
        (buffers(FP8), {}),
        (buffers(FP8), {"k_scale": torch.ones(1), "v_scale": torch.tensor(2.0)}),
    ],
)
def test_buffers_of_a_server_that_is_served_start(sglang, pool, factors):
    model = torch.nn.ModuleList([fake.RadixAttention(**factors)])
    assert sglang(Server(4, (9,), (1,)).runner(token_to_kv_pool=pool, model=model)) is not None
