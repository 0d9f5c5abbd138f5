"""Who may ask, over which connection: the web configuration in exporter-toolkit's format."""
