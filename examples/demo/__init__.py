"""A small continuous-batching server without a model: real request lengths, random tensors, every step checked."""
