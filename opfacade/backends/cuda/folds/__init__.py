"""Engines of folds: how threads share rows or columns, and the constants that the templates of csrc/reduction print."""
