"""Recording format v1: files of what the exporter saw, written and read without any source."""
