"""The reason why tests marked `transformers` cannot run here, or an empty text."""


def missing() -> str:
    try:
        import transformers
    except ImportError:
        return "need transformers: pip install 'opfacade[transformers]'"
    from opfacade.integrations.transformers.releases import parse

    return (
        "" if parse(transformers.__version__) >= (5, 17) else f"need transformers 5.17 or later, not {transformers.__version__}"
    )
