"""Models of nine families with random weights, small enough for a CPU; each family has its special features of attention."""

from __future__ import annotations

from typing import Any

import torch

VOCAB = 128
_COMMON = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_WINDOW = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}  # fmt: skip
# Family: (class prefix, additional fields, what must be equal in bf16: sdpa has no soft cap and no sinks)
FAMILIES = {
    "llama": ("Llama", {}, "sdpa"),
    "qwen3": ("Qwen3", {"head_dim": 16}, "sdpa"),
    "gemma2": ("Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, **_WINDOW}, "eager"),
    "gemma3": ("Gemma3", {"head_dim": 16, "query_pre_attn_scalar": 16, **_WINDOW}, "sdpa"),
    "gpt_oss": ("GptOss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 4, **_WINDOW}, "eager"),
    "deepseek_v2": ("DeepseekV2", {**_LATENT, "topk_method": "greedy", "n_group": 1, "topk_group": 1}, "sdpa"),
    "deepseek_v3": ("DeepseekV3", {**_LATENT, "n_group": 2, "topk_group": 1}, "sdpa"),
}
# Families that share another family's attention; the tests of experts use them.
MODELS = {
    **FAMILIES,
    "qwen3_moe": (
        "Qwen3Moe",
        {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
        "sdpa",
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}, "sdpa"),
}


def config_of(family: str, **fields):
    import transformers

    prefix, own, _ = MODELS[family]
    kind = getattr(transformers, {"gemma3": "Gemma3TextConfig"}.get(family, f"{prefix}Config"))
    return kind(**{**_COMMON, **own, **fields})


def model_of(family: str, attention: str, dtype: torch.dtype = torch.float32, **fields):
    """The same weights for every attention and, except for rounding, for every dtype: they are drawn in f32, since random
    numbers of other dtypes differ between machines."""
    model = _made(family, attention, torch.float32, fields)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # With the initial weights, logits are so close together that a token says little, and sinks are zero.
            if name.endswith("sinks"):
                parameter.normal_(0.0, 2.0)
            elif parameter.ndim > 1:
                parameter.mul_(4.0)
    if dtype != torch.float32:
        drawn, model = model, _made(family, attention, dtype, fields)
        model.load_state_dict(drawn.state_dict())
    return model.eval()


def _made(family: str, attention: str, dtype: torch.dtype, fields: dict[str, Any]):
    import transformers

    torch.manual_seed(7)
    kind = getattr(transformers, f"{MODELS[family][0]}ForCausalLM")
    return kind._from_config(config_of(family, **fields), attn_implementation=attention, dtype=dtype)


def prompts(*lengths: int) -> list[list[int]]:
    """Random tokens; for lengths from 64 on, the second half begins like the first prompt of that length."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Left-padded, as generate expects them."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def generate(model, inputs: dict[str, torch.Tensor], tokens: int = 8, **options) -> list[list[int]]:
    with torch.no_grad():
        return model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **options).tolist()
