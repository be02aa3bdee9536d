"""Expected results of the named ops, computed in plain torch from their pages in docs/ops."""
