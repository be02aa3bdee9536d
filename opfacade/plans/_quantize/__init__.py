"""Quantisation of elements, and programs that quantise and dequantise rows."""
