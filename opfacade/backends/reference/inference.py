"""Makes launchers of the reference write to inference tensors too, as kernels do."""

from __future__ import annotations

from collections.abc import Callable

from opfacade.core.candidate import Launcher


def in_inference_mode(make: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Wraps a launcher factory so that torch records no gradients, which no plan has."""

    def made(*what: object) -> Launcher:
        import torch

        decorated: Launcher = torch.inference_mode()(make(*what))
        return decorated

    return made
