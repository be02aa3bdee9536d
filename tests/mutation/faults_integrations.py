"""Adapters of frameworks: what a layer shares, what a mask means, what a step's tensors are."""

from tests.mutation.mutant import cpu

_CALL = "tests/integrations/test_transformers_call.py"
_OPS = "tests/integrations/test_use_ops.py"
_VLLM, _SGLANG = "tests/integrations/test_vllm.py", "tests/integrations/test_sglang.py"
_SAMPLE = "tests/integrations/test_transformers_sampling.py"
_DRAWS = "tests/integrations/test_vllm_sampler.py"
_JOINT = "tests/integrations/test_sglang_sampler.py"
_AT = "opfacade/integrations"

INTEGRATION_FAULTS = (
    cpu(
        "engines: another release than the tested one is told nothing of",
        f"{_AT}/engines.py",
        "if found and found",
        "if not found and found",
        "tests/integrations/test_engines.py",
    ),
    cpu(
        "transformers: an encoder-decoder is given to continuous batching",
        f"{_AT}/transformers/registration.py",
        'getattr(config, "is_encoder_decoder", False)',
        "False",
        "tests/integrations/test_continuous_batching.py -k without",
    ),
    cpu(
        "transformers: a version that is no number is an error of Python",
        f"{_AT}/transformers/releases.py",
        "if found else (0, 0)",
        "if found else (int(version), 0)",
        f"{_CALL} -k no_version",
    ),
    cpu(
        "transformers: a mask of the last pass serves the next one",
        f"{_AT}/pass_memo.py",
        "return same and layer > self.maker and",
        "return same and",
        _CALL,
    ),
    cpu(
        "transformers: an argument that the adapter does not know is ignored",
        f"{_AT}/transformers/arguments.py",
        "if name not in IGNORED and value is not None and value is not False:",
        "if name in _HINTS and value is not None and value is not False:",
        _CALL,
    ),
    cpu(
        "transformers: a window sees one key more",
        f"{_AT}/transformers/problem.py",
        "return self.window - 1 if",
        "return self.window if",
        _CALL,
    ),
    cpu(
        "transformers: sinks are not counted",
        f"{_AT}/transformers/problem.py",
        '"sinks": self.sinks is not None,',
        '"sinks": False,',
        _CALL,
    ),
    cpu(
        "transformers: room in a static cache counts as keys",
        f"{_AT}/transformers/dense_call.py",
        "return min(query.shape[2], key.shape[2]) if fills else key.shape[2]",
        "return key.shape[2]",
        _CALL,
    ),
    cpu(
        "transformers: a norm of Llama rounds as one of gpt-oss does",
        f"{_AT}/transformers/layer_ops.py",
        '"llama": huggingface',
        '"llama": flashinfer',
        f"{_OPS} -k rounds",
    ),
    cpu(
        "transformers: a rotation is known by its own code, not by that of what it calls",
        f"{_AT}/transformers/same_code.py",
        "found.append((one.__globals__.get(name), other.__globals__.get(name)))",
        "pass",
        "tests/integrations/test_same_code.py",
    ),
    cpu(
        "transformers: a rotation in training mode runs by a plan",
        f"{_AT}/transformers/known_layers.py",
        "if self.training else evaluated",
        "if False else evaluated",
        f"{_OPS} -k training",
    ),
    cpu(
        "transformers: requests with positions of their own take those of the first",
        f"{_AT}/transformers/layer_ops.py",
        "cos.shape[0] == 1)",
        "True)",
        f"{_OPS} -k f32",
    ),
    cpu(
        "vllm: a layer that shares another one's cache writes it",
        f"{_AT}/vllm/impl.py",
        "if self._writes and key is not None",
        "if key is not None",
        _VLLM,
    ),
    cpu(
        "vllm: a window is of the keys before a row's own",
        f"{_AT}/vllm/impl.py",
        "-1 if sliding_window is None else sliding_window - 1",
        "-1 if sliding_window is None else sliding_window",
        _VLLM,
    ),
    cpu(
        "vllm: the bound of a plan is that of one step",
        f"{_AT}/vllm/metadata.py",
        "max_kv_len=max(self._max_kv_len, step.max_seq_len),",
        "max_kv_len=step.max_seq_len,",
        _VLLM,
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
        "sglang: rows of an extend are one a request",
        f"{_AT}/sglang/page_table.py",
        "torch.ones_like(kv_lens) if extend_lens is None else extend_lens",
        "torch.ones_like(kv_lens)",
        _SGLANG,
    ),
    cpu(
        "transformers: the position of a drawn token counts the padding",
        f"{_AT}/transformers/sampling.py",
        "input_ids.shape[1] - self.start",
        "input_ids.shape[1]",
        _SAMPLE,
    ),
    cpu(
        "transformers: a filter that is not mapped stays behind the draw",
        f"{_AT}/transformers/sampling.py",
        "elif last >= 0 and name not in _WITHOUT_EFFECT:",
        "elif last >= 9 and name not in _WITHOUT_EFFECT:",
        _SAMPLE,
    ),
    cpu(
        "transformers: fractions of seeds are cut off",
        f"{_AT}/transformers/sampling.py",
        "if seed.is_floating_point() or seed.is_complex() or seed.dtype == torch.bool:",
        "if seed.is_complex() or seed.dtype == torch.bool:",
        _SAMPLE,
    ),
    cpu(
        "transformers: do_sample=False is ignored",
        f"{_AT}/transformers/sampling.py",
        'controls["temperature"] = 0.0',
        'controls["temperature"] = 1.0',
        _SAMPLE,
    ),
    cpu(
        "vllm: allowed tokens are the banned ones",
        f"{_AT}/vllm/sampling_operands.py",
        "bitmask_of(~metadata.allowed_token_ids_mask)",
        "bitmask_of(metadata.allowed_token_ids_mask)",
        _DRAWS,
    ),
    cpu(
        "vllm: min_p stands behind top_p",
        f"{_AT}/vllm/sampling_operands.py",
        '(_is(p, "MinP") and metadata.top_p is None)',
        '_is(p, "MinP")',
        _DRAWS,
    ),
    cpu(
        "vllm: a generator does not advance",
        f"{_AT}/vllm/sampling_operands.py",
        "generator.set_offset(position + _PER_DRAW)",
        "generator.set_offset(position)",
        _DRAWS,
    ),
    cpu(
        "vllm: generators belong to places of the batch",
        f"{_AT}/vllm/sampling_operands.py",
        "rows = torch.tensor(list(own), device=logits.device)",
        "rows = torch.arange(len(own), device=logits.device)",
        _DRAWS,
    ),
    cpu(
        "vllm: biases of the last step serve the next one",
        f"{_AT}/vllm/sampling_operands.py",
        "source is None or source[0] is not processor.bias_tensor or",
        "source is None or",
        _DRAWS,
    ),
    cpu(
        "vllm: tokens of the prompt count as output",
        f"{_AT}/vllm/sampling_operands.py",
        "counted(padded(metadata.output_token_ids, logits.device), vocab)",
        "counted(metadata.prompt_token_ids, vocab)",
        _DRAWS,
    ),
    cpu(
        "sglang: top_p refers to what top_k keeps",
        f"{_AT}/sglang/sampler.py",
        'order="joint"',
        'order="top_k_first"',
        _JOINT,
    ),
    cpu(
        "sglang: positions have no part in the noise",
        f"{_AT}/sglang/sampler.py",
        "positions.long()",
        "positions.long() * 0",
        _JOINT,
    ),
)
