"""A step of vLLM on fakes: requests with a past, the metadata that its runner creates, and a run of our backend on them."""

from types import SimpleNamespace

import torch

from tests.integrations.fakes import vllm as fake
from tests.integrations.paged_attention import i32

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4


def fakes():
    return {"vllm__v1__attention__backend": fake.BACKEND, "vllm__v1__attention__backends__registry": fake.registry()}


def cache(physical, dtype=torch.float32):
    """[blocks, kv_heads, block, 2 * dim], the shape that vLLM passes, whatever its layout in memory."""
    shape = (12, PAGE, KV_HEADS, 2 * DIM) if physical == "NHD" else (12, KV_HEADS, PAGE, 2 * DIM)
    made = torch.full(shape, float("nan")).to(dtype)
    return made.transpose(1, 2) if physical == "NHD" else made


class Step:
    """Requests with a past: their keys and values are in pages, and each has new rows."""

    def __init__(self, q_lens, kv_lens, pad=0, physical="HND"):
        generator = torch.Generator().manual_seed(5)

        def make(*shape):
            return torch.randn(*shape, generator=generator)

        self.q_lens, self.kv_lens, rows = q_lens, kv_lens, sum(q_lens)
        self.k_of = [make(n, KV_HEADS, DIM) for n in kv_lens]
        self.v_of = [make(n, KV_HEADS, DIM) for n in kv_lens]
        self.q, self.kv = make(rows + pad, HEADS, DIM), cache(physical)
        new = [(x[n - q :], y[n - q :]) for x, y, q, n in zip(self.k_of, self.v_of, q_lens, kv_lens, strict=True)]
        self.k_new, self.v_new = (torch.cat([*part, make(pad, KV_HEADS, DIM)]) for part in zip(*new, strict=True))
        self.pages = [list(range(11 - 3 * b, 8 - 3 * b, -1)) for b in range(len(q_lens))]
        for b, n in enumerate(kv_lens):
            for i in range(n - q_lens[b]):
                self.kv[self.pages[b][i // PAGE], :, i % PAGE] = torch.cat([self.k_of[b][i], self.v_of[b][i]], -1)

    def slots(self):
        """The slot of each new row, computed like in the runner from positions and its block table."""
        places = [
            self.pages[b][i // PAGE] * PAGE + i % PAGE
            for b, (q, n) in enumerate(zip(self.q_lens, self.kv_lens, strict=True))
            for i in range(n - q, n)
        ]
        return torch.tensor(places, dtype=torch.int64)

    def common(self, requests=None, tokens=None, **changed):
        """Metadata as the runner creates it. A captured batch has additional requests without rows and keys, and more tokens;
        the runner has slots for the largest batch."""
        requests, rows = requests or len(self.q_lens), sum(self.q_lens)
        spare = [0] * (requests - len(self.q_lens))
        starts = [sum(self.q_lens[:b]) for b in range(len(self.q_lens))] + [rows] * (len(spare) + 1)
        given = {
            "query_start_loc": i32(*starts), "query_start_loc_cpu": i32(*starts), "seq_lens": i32(*self.kv_lens, *spare),
            "num_reqs": requests, "num_actual_tokens": tokens or rows, "max_query_len": max(self.q_lens), "max_seq_len": 20,
            "block_table_tensor": i32(*[[*p, -1] for p in self.pages], *[[-1] * 4 for _ in spare]),
            "slot_mapping": torch.cat([self.slots(), torch.full((64,), -1)]),
        }  # fmt: skip
        return fake.CommonAttentionMetadata(**(given | changed))


def builder(vllm, longest=12, cache_dtype="auto", **model):
    model = SimpleNamespace(max_model_len=longest, **model)
    config = SimpleNamespace(model_config=model, cache_config=SimpleNamespace(cache_dtype=cache_dtype))
    return vllm.builder("spec", ["layer"], config, torch.device("cpu"))


def built(vllm, common, longest=12):
    return builder(vllm, longest).build(0, common)


def run(vllm, step, common, **options):
    impl = vllm.impl(HEADS, DIM, 0.25, KV_HEADS, **options)
    output = torch.full_like(step.q, float("nan"))
    found = impl.forward(SimpleNamespace(), step.q, step.k_new, step.v_new, step.kv, built(vllm, common), output)
    assert found is output
    return output
