"""attn_implementation="opfacade" for transformers: call `register()` once, then pass this name when you create a model.

    from opfacade.integrations.transformers import register, use_continuous_batching
    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="opfacade")
    model.generate(...)
    use_continuous_batching(model).generate_batch(prompts, ...)
    model.generate(..., do_sample=True, custom_generate=sample, seed=[7, 8])

After `use_ops(model)`, norms, gated activations and rotary embeddings run on plans; `.undo()` of the result reverts this."""

from opfacade.integrations.transformers.registration import Names, names, register, use_continuous_batching
from opfacade.integrations.transformers.sampling import sample
from opfacade.integrations.transformers.use_ops import Replaced, use_ops

__all__ = ["Names", "Replaced", "names", "register", "sample", "use_continuous_batching", "use_ops"]
