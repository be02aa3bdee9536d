"""Programs of folds, as fields and as values, and the base of named ops that are folds."""
