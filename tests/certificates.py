"""Certificates for tests, made by Debian's openssl (the package ca-certificates brings it)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates into a folder; `cert` is its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._pair = self._made(name, ["-addext", "keyUsage=critical,keyCertSign"])
        self.cert = self._pair.cert

    def issue(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1", days: int = 30) -> Pair:
        """A certificate for server or client with these alternative names.

        With -1 day it is one that ended yesterday.
        """
        request, pair = self._folder / f"{name}.csr", self._pair_of(name)
        self._openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(pair.key), "-out", str(request)),
        )
        self._openssl(
            *("x509", "-req", "-in", str(request), "-copy_extensions", "copy"),
            *("-CA", str(self._pair.cert), "-CAkey", str(self._pair.key), "-CAcreateserial"),
            *("-days", str(days), "-out", str(pair.cert)),
        )
        return pair

    def encrypted(self, key: Path) -> Path:
        """A key once more, under a passphrase."""
        path = key.with_suffix(".locked")
        self._openssl(
            *("pkey", "-in", str(key), "-aes256", "-passout", "pass:geheim", "-out", str(path))
        )
        return path

    def _made(self, name: str, more: list[str]) -> Pair:
        pair = self._pair_of(name)
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "30", "-subj", f"/CN={name}", *more),
            *("-keyout", str(pair.key), "-out", str(pair.cert)),
        )
        return pair

    def _pair_of(self, name: str) -> Pair:
        return Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], capture_output=True, text=True, check=False, cwd=self._folder
        )
        assert done.returncode == 0, done.stderr
