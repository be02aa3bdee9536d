"""Reads the signatures of a framework's classes from its sources: `python -m tests.integrations.signatures vllm 0.33.0 DIR`.

DIR is an unpacked wheel or a checkout of that version. It prints the table that tests/data keeps; with --check it compares.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
RECORDS = {"vllm": "vllm_signatures.json", "sglang": "sglang_signatures.json"}
# Classes whose attributes an adapter reads: the attributes that __init__ sets are recorded too.
STATEFUL = {
    "Sampler", "LogitsProcessors", "MinPLogitsProcessor", "LogitBiasLogitsProcessor", "MinTokensLogitsProcessor",
    "SamplingStates", "MHATokenToKVPool", "RoutedExperts", "FusedMoE",
}  # fmt: skip
# Names that an adapter derives from, calls or reads, by module.
WANTED = {
    "vllm": {
        "vllm.v1.attention.backend": [
            "AttentionBackend", "AttentionImpl", "AttentionImplBase", "AttentionMetadataBuilder", "AttentionCGSupport",
            "AttentionMetadata", "AttentionType", "CommonAttentionMetadata", "AttentionLayer", "MultipleOf",
        ],
        "vllm.v1.attention.backends.registry": ["AttentionBackendEnum", "register_backend"],
        "vllm.v1.attention.backends.utils": ["get_dcp_local_seq_lens"],
        "vllm.v1.attention.ops.dcp": ["cp_lse_ag_out_rs", "mask_dcp_empty_shards_"],
        "vllm.compilation.passes.fusion.allreduce_rms_fusion": ["call_trtllm_fused_allreduce_norm"],
        "vllm.model_executor.custom_op": ["CustomOp", "op_registry_oot"],
        "vllm.model_executor.layers.fused_moe.activation": ["MoEActivation"],
        "vllm.model_executor.layers.fused_moe.config": ["FusedMoEConfig", "FusedMoEParallelConfig"],
        "vllm.model_executor.layers.fused_moe.fused_moe_method_base": ["FusedMoEMethodBase"],
        "vllm.model_executor.layers.fused_moe.oracle.unquantized": ["UnquantizedMoeBackend"],
        "vllm.model_executor.layers.fused_moe.routed_experts": ["RoutedExperts"],
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method": ["UnquantizedFusedMoEMethod"],
        "vllm.model_executor.layers.quantization.base_config": ["QuantizeMethodBase"],
        "vllm.v1.outputs": ["SamplerOutput"],
        "vllm.v1.sample.logits_processor.builtin": [
            "MinPLogitsProcessor", "LogitBiasLogitsProcessor", "MinTokensLogitsProcessor",
        ],
        "vllm.v1.sample.logits_processor.state": ["LogitsProcessors"],
        "vllm.v1.sample.metadata": ["SamplingMetadata"],
        "vllm.v1.sample.sampler": ["Sampler"],
        "vllm.v1.worker.gpu.sample.sampler": ["Sampler"],
        "vllm.v1.worker.gpu.sample.states": ["SamplingStates"],
    },
    "sglang": {
        "sglang.srt.layers.attention.base_attn_backend": ["AttentionBackend"],
        "sglang.srt.layers.attention.attention_registry": ["register_attention_backend"],
        "sglang.srt.arg_groups.choices": ["ATTENTION_BACKEND_CHOICES", "MOE_RUNNER_BACKEND_CHOICES"],
        "sglang.srt.layers.dcp.comm": ["cp_lse_ag_out_rs_mha", "cp_lse_ag_out_rs_mla"],
        "sglang.srt.layers.dcp.layout": ["get_dcp_lens"],
        "sglang.srt.layers.flashinfer_comm_fusion": ["flashinfer_allreduce_residual_rmsnorm"],
        "sglang.srt.layers.moe.fused_moe_triton.layer": ["FusedMoE"],
        "sglang.srt.layers.moe.moe_runner.base": ["DispatchMoeRunnerCore", "MoeRunnerConfig"],
        "sglang.srt.layers.moe.moe_runner.runner": ["MoeRunner", "register_moe_runner_core"],
        "sglang.srt.layers.moe.moe_runner.triton": ["TritonMoeQuantInfo"],
        "sglang.srt.layers.moe.token_dispatcher.standard": ["StandardCombineInput", "StandardDispatchOutput"],
        "sglang.srt.layers.moe.topk": ["StandardTopKOutput"],
        "sglang.srt.layers.moe.utils": [
            "MoeA2ABackend", "MoeRunnerBackend", "RegisteredMoeRunnerBackend", "get_moe_a2a_backend", "get_moe_runner_backend",
            "resolve_moe_runner_backend",
        ],
        "sglang.srt.layers.quantization.unquant": ["UnquantizedFusedMoEMethod"],
        "sglang.srt.layers.radix_attention": ["RadixAttention", "AttentionType"],
        "sglang.srt.layers.sampler": ["Sampler", "register_sampler_backend"],
        "sglang.srt.mem_cache.memory_pool": ["KVWriteLoc", "KVCache", "MHATokenToKVPool", "ReqToTokenPool"],
        "sglang.srt.model_executor.forward_batch_info": ["ForwardBatch", "ForwardMode"],
        "sglang.srt.sampling.sampling_batch_info": ["SamplingBatchInfo"],
    },
}  # fmt: skip


def parameters(node: ast.FunctionDef) -> list[str]:
    """Names in order: `=` after a name with a default, * and ** before variadic names."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    names = [one.arg for one in plain]
    for index in range(len(plain) - len(given.defaults), len(plain)):
        names[index] += "="
    names += [f"*{given.vararg.arg}"] if given.vararg else ["*"] if given.kwonlyargs else []
    names += [one.arg + ("=" if default else "") for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return [name for name in names if name not in ("self", "cls")]


def described(node: ast.stmt) -> dict[str, object]:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return {"value": type(node.value).__name__.lower()}
    if isinstance(node, ast.FunctionDef):
        return {"parameters": parameters(node)}
    methods = {one.name: parameters(one) for one in node.body if isinstance(one, ast.FunctionDef)}
    fields = [_field(one) for one in node.body if isinstance(one, (ast.Assign, ast.AnnAssign))]
    found: dict[str, object] = {"methods": methods, "fields": fields}
    return found | ({"attributes": _attributes(node)} if node.name in STATEFUL else {})


def _attributes(node: ast.stmt) -> list[str]:
    """The attributes that __init__ sets on self."""
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    set_there = [one for function in made for one in ast.walk(function) if isinstance(one, ast.Attribute)]
    return sorted({one.attr for one in set_there if isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self"})


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else str(getattr(node, "name", ""))


def _field(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return ast.unparse(target) + ("=" if node.value is not None else "")


def _tops(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of a module, including those inside conditions on installed packages."""
    return [one for stmt in body for one in ([stmt, *_tops(stmt.body)] if isinstance(stmt, ast.If) else [stmt])]


def table(project: str, version: str, root: Path) -> dict[str, object]:
    modules = {}
    for module, names in WANTED[project].items():
        path = root / (module.replace(".", "/") + ".py")
        tops = {_name(one): one for one in _tops(ast.parse(path.read_text()).body)}
        modules[module] = {name: described(tops[name]) for name in names}
    return {"project": project, "version": version, "modules": modules}


def stored(project: str) -> dict:
    path = DATA / RECORDS[project]
    return json.loads(path.read_text())


def main(project: str, version: str, root: str, check: str = "") -> int:
    found = table(project, version, Path(root))
    if check:
        return int(found != stored(project))
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
