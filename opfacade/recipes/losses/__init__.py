"""Recipes of losses, with every reduction of torch."""
