"""Faults in adapters of frameworks: values shared by layers, meaning of masks, tensors of a step."""

from tests.mutation.mutant import cpu

_CALL = "tests/integrations/test_transformers_call.py"
_VLLM, _SGLANG = "tests/integrations/test_vllm.py tests/integrations/test_vllm_slots.py", "tests/integrations/test_sglang.py"
_DRAWS = "tests/integrations/test_vllm_sampler.py"
_JOINT = "tests/integrations/test_sglang_sampler.py"
_EXPERTS = "tests/integrations/test_experts.py"
_AT = "opfacade/integrations"

INTEGRATION_FAULTS = (
    cpu(
        "transformers: an id behind the last expert is that of the last one",
        f"{_AT}/transformers/experts.py",
        "torch.where(top_k_index < weights.up.shape[0], top_k_index, -1)",
        "top_k_index.clamp(max=weights.up.shape[0] - 1)",
        f"{_EXPERTS} -k other_ranks",
    ),
    cpu(
        "transformers: pairs of gpt-oss lose the 1 that is added to each up",
        f"{_AT}/transformers/expert_op.py",
        '"beta": 1.0',
        '"beta": 0.0',
        f"{_EXPERTS} -k greedy and gpt_oss",
    ),
    cpu(
        "transformers: experts with a norm behind each run without it",
        f"{_AT}/transformers/experts.py",
        'if _field(module, "has_post_expert_norm"):',
        'if _field(module, "has_no_expert_norm"):',
        f"{_EXPERTS} -k refused_by_name",
    ),
    cpu(
        "transformers: a gate of other code counts as one of halves",
        f"{_AT}/transformers/known_layers.py",
        'return "halves" if same_code(own, _originals().halves) else None',
        'return "halves"',
        f"{_EXPERTS} -k refused_by_name",
    ),
    cpu(
        "transformers: a version that is no number is an error of Python",
        f"{_AT}/transformers/releases.py",
        "if found else (0, 0)",
        "if found else (int(version), 0)",
        f"{_CALL} -k no_version",
    ),
    cpu(
        "engines: rows without a slot go to the last token of a page",
        f"{_AT}/slots.py",
        ".masked_fill_(slots < 0, NOWHERE)",
        ".clamp_(min=0)",
        f"{_VLLM} -k nowhere or draft",
    ),
    cpu(
        "engines: two rows with one slot race without an error",
        f"{_AT}/slots.py",
        "if slot >= 0 and first.setdefault(slot, row) != row:",
        "if slot < -1 and first.setdefault(slot, row) != row:",
        f"{_VLLM} -k level_full",
    ),
    cpu(
        "vllm: as many rows as requests are one each",
        f"{_AT}/vllm/metadata.py",
        "return all(start == min(request, starts[-1]) for request, start in enumerate(starts))",
        "return len(starts) > 0",
        f"{_VLLM} -k without_rows",
    ),
    cpu(
        "vllm: the second runner keeps its own sampler",
        f"{_AT}/vllm/__init__.py",
        "for runner, sampler in own:",
        "for runner, sampler in own[:1]:",
        f"{_DRAWS} -k runner",
    ),
    cpu(
        "vllm: the second runner draws with the seeds of other requests",
        f"{_AT}/vllm/second_sampler.py",
        '"seed": states.seeds.gpu[rows],',
        '"seed": states.seeds.gpu[: len(rows)],',
        f"{_DRAWS} -k second",
    ),
    cpu(
        "sglang: a layer is refused while the server serves",
        f"{_AT}/sglang/refusals.py",
        "if isinstance(layer, RadixAttention):",
        "if not isinstance(layer, object):",
        f"{_SGLANG} -k at_start",
    ),
    cpu(
        "sglang: buffers are looked at by the first step",
        f"{_AT}/sglang/refusals.py",
        "refuse_buffers(runner.token_to_kv_pool, layer, runner.page_size or 1)",
        "pass",
        "tests/integrations/test_sglang_buffers.py -k no_step",
    ),
    cpu(
        "sglang: slots serve as pages",
        f"{_AT}/sglang/page_table.py",
        'torch.div(self._first_slots[requests], self._page_size, rounding_mode="floor", out=table)',
        "table.copy_(self._first_slots[requests])",
        _SGLANG,
    ),
    cpu(
        "sglang: buffers of a captured graph are dropped",
        f"{_AT}/sglang/page_table.py",
        "self._made.append((table,",
        "self._made[:] = []\n            self._made.append((table,",
        _SGLANG,
    ),
    cpu(
        "vllm: tokens of the prompt count as output",
        f"{_AT}/vllm/sampling_operands.py",
        "counted(padded(metadata.output_token_ids, logits.device), vocab)",
        "counted(metadata.prompt_token_ids, vocab)",
        _DRAWS,
    ),
    cpu(
        "sglang: positions have no part in the noise",
        f"{_AT}/sglang/sampler.py",
        "positions.long()",
        "positions.long() * 0",
        _JOINT,
    ),
)
