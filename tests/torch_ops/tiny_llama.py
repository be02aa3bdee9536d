"""A Llama of two small layers in plain torch, on a paged cache through torch.ops.opfacade; and the same without a cache."""

import torch
from torch.nn import functional as F

from opfacade import Plan, Target, torch_ops
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor

VOCAB, LAYERS, HEADS, KV_HEADS, DIM, WIDTH, PAGE, PAGES, ROW = 61, 2, 4, 2, 8, 32, 4, 40, 5
CACHE = PagedKvCacheDescriptor(
    num_total_pages=PAGES, page_size=PAGE, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="f32", layout="NHD"
)
OPS = torch.ops.opfacade
assert "paged_decode" in torch_ops.defined()


def rotated(x, positions):
    """x [rows, heads, DIM] rotated by the angles of its positions, in halves."""
    angles = positions[:, None].float() / 10000 ** (torch.arange(0, DIM, 2) / DIM)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        widths = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
        self.project = torch.nn.ModuleDict({n: torch.nn.Linear(WIDTH, w, bias=False) for n, w in widths.items()})
        self.out = torch.nn.Linear(HEADS * DIM, WIDTH, bias=False)
        self.gate, self.up = (torch.nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(48, WIDTH, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(WIDTH) for _ in range(2))

    def forward(self, x, positions, attend):
        y = self.norms[0](x)
        q, k, v = (self.project[n](y).view(len(x), -1, DIM) for n in "qkv")
        x = x + self.out(attend(rotated(q, positions), rotated(k, positions), v).reshape(len(x), -1))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, VOCAB, bias=False)

    def logits(self, tokens, positions, attend):
        x = self.embed(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, positions, lambda q, k, v, number=number: attend(number, q, k, v))
        return self.head(self.norm(x))


def dense_tokens(model, prompt, steps):
    """Greedy tokens of one prompt, with all of it computed at each step by torch's own attention."""
    tokens = list(prompt)

    def attend(_, q, k, v):
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    for _ in range(steps):
        given = torch.tensor(tokens)
        tokens.append(int(model.logits(given, torch.arange(len(tokens)), attend)[-1].argmax()))
    return tokens[len(prompt) :]


def decode_plans(batch, max_kv_indices=None, **fields):
    common = {"batch_size": batch, "paged_kv": CACHE, "page_table": "block", "max_kv_indices": max_kv_indices}
    attention = BatchPagedDecodeDescriptor(num_qo_heads=HEADS, return_lse=False, **common, **fields)
    return [Plan.select(d, target=Target.cpu()) for d in (PagedKvAppendDescriptor(total_num_rows=batch, **common), attention)]


def prefill_plans(batch, rows):
    common = {"batch_size": batch, "total_num_rows": rows, "paged_kv": CACHE, "page_table": "block"}
    attention = BatchPagedPrefillDescriptor(num_qo_heads=HEADS, causal=True, return_lse=False, **common)
    return [Plan.select(d, target=Target.cpu()) for d in (PagedKvAppendDescriptor(**common), attention)]


def decode(model, tokens, cache, table, append, attention):
    """One token for each request; append and attention are the handles of plans."""
    k_cache, v_cache = cache
    indptr = torch.arange(len(tokens) + 1, dtype=torch.int32)

    def attend(number, q, k, v):
        pools = k_cache[number], v_cache[number]
        OPS.paged_kv_append(append, k, v, indptr, *pools, **table)
        return OPS.paged_decode_functional(attention, q, *pools, **table, return_lse=False)[0]

    return model.logits(tokens, table["kv_lens"] - 1, attend).argmax(-1)


def prefill(model, tokens, positions, indptr, cache, table, append, attention):
    """The next token of each request after its prompt; the caller allocates the outputs of attention."""
    k_cache, v_cache = cache

    def attend(number, q, k, v):
        pools, o = (k_cache[number], v_cache[number]), torch.empty_like(q)
        OPS.paged_kv_append(append, k, v, indptr, *pools, **table)
        OPS.paged_prefill(attention, q, indptr, *pools, o, **table)
        return o

    logits = model.logits(tokens, positions, attend)
    return logits[indptr[1:].long() - 1].argmax(-1)
