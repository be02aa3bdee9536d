"""Calls of attention, and the wrappers whose names FlashInfer's public modules export."""
