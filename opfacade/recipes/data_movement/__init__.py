"""Recipes whose elements are elements of their inputs, at computed positions."""
