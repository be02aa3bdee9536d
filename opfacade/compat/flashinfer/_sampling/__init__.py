"""Filters, draws and seeds of FlashInfer's sampling calls."""
