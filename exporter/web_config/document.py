"""A web configuration file's text → what it asks for, or all of its mistakes.

What Python's TLS cannot do is a mistake or a note, never ignored.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.config import ConfigError
from exporter.web_config import values
from exporter.web_config.settings import ANY, ASKED, IF_GIVEN, SECTIONS, VERIFIED, WEB_SETTINGS
from exporter.yaml_settings import read_settings
from exporter.yaml_text import read_yaml

_COSTLY = 14
"""Of a hash: above this a check takes many seconds."""
_ELSEWHERE = {
    setting.key: f"it belongs to `{section}`"
    for section, settings in SECTIONS.items()
    for setting in settings
}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How TLS is spoken; of certificate, key and CA either the text or the path is given."""

    cert: str | None = None
    cert_file: Path | None = None
    key: str | None = field(default=None, repr=False)
    key_file: Path | None = None
    client_ca: str | None = None
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    client_allowed_sans: tuple[str, ...] = ()
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    cipher_suites: tuple[str, ...] = ()
    """Of TLS 1.2, by OpenSSL's names; empty: Python's choice."""
    prefer_server_cipher_suites: bool = True
    curve: str | None = None
    """By OpenSSL's name; `None`: its choice."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One more request each interval, and so many at once."""

    interval_seconds: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What a web configuration file asks for."""

    tls: TlsSettings | None = None
    """`None`: plain HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Bcrypt hashes by user; empty: everybody may ask."""
    rate_limit: RateLimit | None = None
    notes: tuple[str, ...] = ()
    """What will be otherwise than the file says."""


def parse(text: str, directory: Path) -> WebConfig:
    """What a text asks for; its relative paths begin at `directory`.

    Raises:
        ConfigError: It has mistakes: all of them are named.
    """
    document, mistakes = read_yaml(text)
    if document is None:
        raise ConfigError("\n".join(mistakes or ["the file is empty; leave it out for plain HTTP"]))
    given = read_settings(document, WEB_SETTINGS, "", mistakes, _ELSEWHERE)

    tls, http, rate = (
        read_settings(given.get(key, {}), settings, key, mistakes)
        for key, settings in SECTIONS.items()
    )
    notes: list[str] = []
    if rate.get("interval") and not rate.get("burst"):
        mistakes.append("rate_limit.burst: with 0 nobody could ask; give a number from 1")
    tls_settings = _tls(tls, directory, mistakes, notes) if given.get("tls_server_config") else None
    users = given.get("basic_auth_users", {})
    for user, hashed in users.items():
        if (cost := values.hash_cost(hashed)) > _COSTLY:
            notes.append(f"basic_auth_users.{user}: a check of cost {cost} takes many seconds")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    limit = RateLimit(rate["interval"], rate["burst"]) if rate.get("interval") else None
    return WebConfig(tls_settings, http.get("headers", {}), users, limit, tuple(notes))


def _tls(
    given: dict[str, Any], directory: Path, mistakes: list[str], notes: list[str]
) -> TlsSettings:
    found = len(mistakes)
    mistakes += [
        f"tls_server_config.{key}: {key}_file is given, too; give one of them"
        for key in ("cert", "key", "client_ca")
        if key in given and f"{key}_file" in given
    ]
    for key, what in (("cert", "certificate"), ("key", "private key")):
        if not {key, f"{key}_file"} & given.keys():
            mistakes.append(f"tls_server_config: no {what} is given; TLS needs `{key}_file`")
    given = dict(given)
    for key in ("cert_file", "key_file", "client_ca_file"):
        if key in given:
            given[key] = directory / given[key]
    given["client_auth"] = _client_auth(given, mistakes, notes)
    _choose_versions(given, mistakes, notes)
    curves = given.pop("curve_preferences", ())
    given["curve"] = values.CURVES[curves[0]] if curves else None
    return TlsSettings(**given) if len(mistakes) == found else TlsSettings()


def _client_auth(given: dict[str, Any], mistakes: list[str], notes: list[str]) -> ssl.VerifyMode:
    kind = given.pop("client_auth_type", "") or "NoClientCert"
    place = "tls_server_config.client_auth_type"
    has_ca = bool({"client_ca", "client_ca_file"} & given.keys())
    if kind in (VERIFIED, IF_GIVEN, *ANY) and not has_ca:
        mistakes.append(f"{place}: {kind} needs `client_ca_file`, who issues clients' certificates")
    if kind == "NoClientCert" and has_ca:
        mistakes.append(f"{place}: a client CA is given and no certificate asked for: {VERIFIED}?")
    if "client_allowed_sans" in given and kind not in (VERIFIED, *ANY):
        mistakes.append(
            f"tls_server_config.client_allowed_sans: a client without a certificate would pass by; "
            f"it needs `client_auth_type: {VERIFIED}`"
        )
    if kind == ASKED:
        notes.append(f"{place}: no certificate is asked for, as {kind} would verify none")
    if kind in ANY:
        notes.append(f"{place}: certificates are verified, as with {VERIFIED}")
    if kind == IF_GIVEN:
        return ssl.CERT_OPTIONAL
    return ssl.CERT_REQUIRED if kind in (VERIFIED, *ANY) else ssl.CERT_NONE


def _choose_versions(given: dict[str, Any], mistakes: list[str], notes: list[str]) -> None:
    """Sets the versions to speak, and the suites of TLS 1.2, in what is given."""
    oldest = given.get("min_version", ssl.TLSVersion.TLSv1_2)
    newest = given.get("max_version", ssl.TLSVersion.TLSv1_3)
    if oldest < ssl.TLSVersion.TLSv1_2:
        notes.append("tls_server_config.min_version: TLS 1.2 is the oldest that is spoken")
        oldest = ssl.TLSVersion.TLSv1_2
    if oldest > newest:
        mistakes.append("tls_server_config.min_version: it is newer than max_version")
    listed = given.get("cipher_suites", ())
    given["cipher_suites"] = tuple(
        values.CIPHERS[name] for name in listed if name in values.CIPHERS
    )
    if listed and not given["cipher_suites"]:  # as in Go: nothing is left to TLS 1.2
        if newest < ssl.TLSVersion.TLSv1_3:
            mistakes.append("tls_server_config.cipher_suites: TLS 1.2 has none of these")
        oldest = ssl.TLSVersion.TLSv1_3
    given["min_version"], given["max_version"] = oldest, newest
