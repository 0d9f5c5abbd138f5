"""Measurements on real hardware; nothing here is imported by the exporter."""
