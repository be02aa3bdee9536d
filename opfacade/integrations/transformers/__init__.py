"""attn_implementation="opfacade" for transformers: call `register()` once, then name it when a model is created.

from opfacade.integrations.transformers import register, use_continuous_batching
register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="opfacade")
model.generate(...)
use_continuous_batching(model).generate_batch(prompts, ...)
"""

from opfacade.integrations.transformers.registration import Names, names, register, use_continuous_batching

__all__ = ["Names", "names", "register", "use_continuous_batching"]
