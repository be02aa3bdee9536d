"""Recipes whose results depend on the position of an element, and on a key if they are random."""
