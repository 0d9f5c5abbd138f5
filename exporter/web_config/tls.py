"""TLS as a web configuration asks for it: PEM texts → what accepts connections, tried once.

Keys stay in memory: they reach OpenSSL by anonymous files, so that what was read is what is used.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from exporter.config import ConfigError
from exporter.web_config.document import TlsSettings

_MOST_PEM_BYTES = 1 << 20
_MOST_FLIGHTS = 10
_SECTION = "tls_server_config"
_DAMAGED = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short to be trusted; make a longer one",
    "CA_MD_TOO_WEAK": "the certificate is signed with a weak digest; make another",
}
"""What OpenSSL's reasons mean for an operator."""


@dataclass(frozen=True, slots=True)
class Pems:
    """What was read: certificate, key and clients' CA."""

    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None


def read_pems(tls: TlsSettings) -> Pems:
    """Reads the files, or takes the texts that stand in the configuration.

    Raises:
        ConfigError: Some cannot be read or are not PEM: all of them are named.
    """
    mistakes: list[str] = []
    cert = _pem("cert", tls.cert, tls.cert_file, b"CERTIFICATE-----", mistakes)
    key = _pem("key", tls.key, tls.key_file, b"PRIVATE KEY-----", mistakes)
    client_ca = None
    if tls.client_ca is not None or tls.client_ca_file is not None:
        client_ca = _pem(
            "client_ca", tls.client_ca, tls.client_ca_file, b"CERTIFICATE-----", mistakes
        )
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return Pems(cert, key, client_ca)


def read_plain(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file: on the event loop, so of none that may keep it waiting.

    Raises:
        OSError: It cannot be read, or is no plain file: a pipe, a device.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        return file.read(most)


def _pem(key: str, text: str | None, path: Path | None, mark: bytes, mistakes: list[str]) -> bytes:
    if path is None:
        place, content = f"{_SECTION}.{key}", (text or "").encode()
    else:
        place = f"{_SECTION}.{key}_file"
        try:
            content = read_plain(path, _MOST_PEM_BYTES)
        except OSError as error:
            mistakes.append(
                f"{place}: cannot read {path}: {(error.strerror or '').lower()}; "
                "make it a file that the exporter's user can read"
            )
            return b""
    if mark not in content:
        what = "private key" if key == "key" else "certificate"
        mistakes.append(f"{place}: there is no {what} in PEM form{f' in {path}' if path else ''}")
    return content


def server_context(tls: TlsSettings, pems: Pems) -> tuple[ssl.SSLContext, list[str]]:
    """What accepts connections, and what is doubtful about it.

    Raises:
        ConfigError: The texts are damaged, do not belong together, or no client could connect.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(context, pems)
    context.minimum_version, context.maximum_version = tls.min_version, tls.max_version
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if tls.cipher_suites:
        context.set_ciphers(":".join(tls.cipher_suites))
    if tls.curve is not None:
        try:
            context.set_ecdh_curve(tls.curve)
        except ssl.SSLError as error:  # Debian 12's 3.11.2 knows no X25519 here
            raise ConfigError(
                f"{_SECTION}.curve_preferences: this Python cannot be held to {tls.curve}; "
                "leave the setting out: OpenSSL prefers X25519 anyway"
            ) from error
    context.set_alpn_protocols(["http/1.1"])
    doubts = _try(context, pems.cert)
    if pems.client_ca is not None:
        try:
            context.load_verify_locations(cadata=pems.client_ca.decode("ascii", "replace"))
        except ssl.SSLError as error:
            raise ConfigError(f"{_SECTION}.client_ca_file: the certificate is damaged") from error
        # As in Go, whoever is listed is trusted, also one that somebody else has issued.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = tls.client_auth
    if tls.client_allowed_sans:
        context.sslobject_class = _vetted(frozenset(map(_plain, tls.client_allowed_sans)))
    return context, doubts


def _load_pair(context: ssl.SSLContext, pems: Pems) -> None:
    def passphrase() -> str:
        raise ConfigError(
            f"{_SECTION}: the private key is encrypted; give it as `openssl pkey -in KEY` prints it"
        )

    with _Anonymous(pems.cert) as cert, _Anonymous(pems.key) as key:
        try:
            context.load_cert_chain(cert, key, passphrase)
        except ssl.SSLError as error:
            reason = _DAMAGED.get(error.reason or "", "certificate or key is damaged")
            raise ConfigError(f"{_SECTION}: {reason}") from error


class _Anonymous:
    """A file that has no name and lies in memory, while it is used as a context manager."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._descriptor = -1

    def __enter__(self) -> str:
        self._descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        os.write(self._descriptor, self._content)
        return f"/proc/self/fd/{self._descriptor}"

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _try(context: ssl.SSLContext, cert: bytes) -> list[str]:
    """Shakes hands with it in memory, as a client that trusts this certificate."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.set_ciphers("ALL")
    client.load_verify_locations(cadata=cert.decode("ascii", "replace"))
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    try:
        for _ in range(_MOST_FLIGHTS):
            if _step(theirs) & _step(ours):  # both in any case
                break
    except ssl.SSLCertVerificationError as error:
        return [f"{_SECTION}: clients will refuse the certificate: {error.verify_message}"]
    except ssl.SSLError as error:
        raise ConfigError(
            f"{_SECTION}: no client could connect ({error.reason}); do cipher_suites fit the key?"
        ) from error
    return []


def _step(side: ssl.SSLObject) -> bool:
    """Whether this side is done."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _vetted(allowed: frozenset[str]) -> type[ssl.SSLObject]:
    class Vetted(ssl.SSLObject):
        """A connection that ends in the handshake, unless the client has one of the names."""

        def do_handshake(self) -> None:
            super().do_handshake()
            shown: dict[str, Any] = self.getpeercert() or {}
            if allowed.isdisjoint(_plain(name) for _, name in shown.get("subjectAltName", ())):
                raise ssl.SSLCertVerificationError("the client has none of the allowed names")

    return Vetted


def _plain(name: str) -> str:
    """The name; of an IP address the short form, however it is written."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


class CurrentContext(ssl.SSLContext):
    """Accepts each new connection with the context that is current then."""

    _current: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, current: Callable[[], ssl.SSLContext]) -> Self:
        """`current` is asked at each connection."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._current = current
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """What asyncio calls once a connection."""
        return self._current().wrap_bio(*args, **options)
