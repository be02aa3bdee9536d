"""Rotations of FlashInfer's calls, and heads in fp8."""
