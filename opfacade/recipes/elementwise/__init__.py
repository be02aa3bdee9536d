"""Recipes of maps: each element of a result depends on the elements at its own position."""
