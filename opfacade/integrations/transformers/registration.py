"""Registration of attention and experts with transformers, under the names that the installed release permits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.base.installation import install
from opfacade.integrations.refusal import refuse
from opfacade.integrations.transformers.releases import WAY, Release, release_of

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import Decoder

STANDARD = "opfacade"


class Names(NamedTuple):
    """Names for attn_implementation. `standard` is also the name for experts_implementation.

    `continuous` is empty if the release permits no name; `reason` explains why.
    """

    standard: str
    continuous: str
    reason: str


def names() -> Names:
    """The names that `register` adds to the installed transformers. Raises UnsupportedError for an unknown release."""
    release = _installed()
    return Names(STANDARD, release.continuous, release.reason)


def register() -> Names:
    """Registers the attention functions, their mask function and the experts; further calls have no effect.

    Raises UnsupportedError if transformers is older than 5.17 (OPF-I005) or missing (OPF-I006)."""
    release = _installed()
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ExpertsInterface
    from transformers.masking_utils import sdpa_mask

    from opfacade.integrations.transformers.experts import experts
    from opfacade.integrations.transformers.gathered import gathered_attention
    from opfacade.integrations.transformers.paged import paged_attention
    from opfacade.integrations.transformers.standard import attention

    # Without a mask function transformers passes no mask, also for padded batches.
    AttentionInterface.register(STANDARD, attention)
    AttentionMaskInterface.register(STANDARD, sdpa_mask)
    ExpertsInterface.register(STANDARD, experts)
    if release.contract != "none":
        continuous = paged_attention if release.contract == "paged" else gathered_attention
        AttentionInterface.register(release.continuous, continuous)
        if release.contract == "gathered":  # it also serves calls of model.forward
            AttentionMaskInterface.register(release.continuous, sdpa_mask)
    return names()


def use_continuous_batching(model: Decoder) -> Any:
    """Sets the model's attention to the name that continuous batching accepts, and returns the model.

    5.17 and 5.18 attend over the pages of the cache. 5.19 and later give each layer one copy of the keys and values of all
    requests; they do not pass the pages to the attention of another package. Raises UnsupportedError if the release does not
    permit this (OPF-I005), or for a model that does not support continuous batching (OPF-I008)."""
    release = _installed()
    if not _is_decoder(model):
        hint = "attn_implementation='opfacade' serves its forward and generate."
        refuse(WAY, "OPF-I008", "model", expected="a decoder with generate_batch", got=type(model).__name__, hint=hint)
    register()
    if release.contract == "none":
        hint = "attn_implementation='opfacade' serves model.generate."
        refuse(WAY, "OPF-I005", "transformers", expected="5.17 to 5.24", got=_version(), hint=f"{release.reason}. {hint}")
    if release.contract == "paged":
        model.set_attn_implementation(release.continuous)
    else:
        # set_attn_implementation would look for a flash attention package for every name that contains "flash".
        model.config._attn_implementation = release.continuous
    return model


def _is_decoder(model: Decoder) -> bool:
    config = getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False) or not hasattr(model, "generate_batch"):
        return False
    return bool(model.can_generate())


def _installed() -> Release:
    return release_of(_version())


def _version() -> str:
    try:
        import transformers
    except ImportError as error:
        hint = f"{install('transformers')} brings it."
        refuse(WAY, "OPF-I006", "transformers", expected="to be installed", got=error, hint=hint)
    return str(transformers.__version__)
