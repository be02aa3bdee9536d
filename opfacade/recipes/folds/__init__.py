"""Recipes of folds: reductions, norms, softmaxes and distances."""
