"""Recipes of matrix products."""
