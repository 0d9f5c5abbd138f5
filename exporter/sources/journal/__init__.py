"""The systemd journal as a source; `reader` is the only door to it."""
