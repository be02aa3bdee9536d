"""Adapters that let a framework run its attention on opfacade: transformers, vLLM and SGLang. See docs/integrations.md.

An adapter imports its framework when it is registered, never before, and uses the public API of opfacade alone.
"""
