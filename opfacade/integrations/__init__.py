"""Adapters that let a framework run its attention on opfacade: transformers, vLLM and SGLang. See docs/integrations.md.

An adapter imports its framework only when it is registered, and uses only the public API of opfacade."""
