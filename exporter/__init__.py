"""SGLang pipeline exporter: what each pipeline stage of an SGLang server is doing."""

__version__ = "0.1.0"
