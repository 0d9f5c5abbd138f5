"""Builds the container image for real and runs it; `python -m tests.image`, or `make image-test`.

Root, buildah and debootstrap are needed, and a mirror of Debian; no Docker, and no image from
anywhere. Everything lies in one folder that is gone at the end.
"""
