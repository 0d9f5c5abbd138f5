"""SGLang pipeline exporter."""
