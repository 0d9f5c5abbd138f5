"""An outcome of `diagnose` → one self-contained HTML file: no script, no request to anywhere."""
