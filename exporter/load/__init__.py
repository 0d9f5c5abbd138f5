"""Drives a load against an SGLang server and measures what the server gives for it."""
