"""How the values of the web configuration are read: what YAML gave to a value, or what is wrong.

The format is that of Prometheus exporter-toolkit (docs/web-configuration.md there), whose names for
TLS versions, cipher suites, curves and client authentication are those of Go's crypto/tls.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

import bcrypt

from exporter.setting_values import WrongValueError, shown

VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}
"""Go's name → OpenSSL's, of what TLS 1.2 may use."""
TLS13_CIPHERS = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
"""Always offered with TLS 1.3: neither Go nor Python lets anybody choose among them."""
CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""The headers that may be set, each with its values; empty: any."""

_HASH = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$([./A-Za-z0-9]{22})[./A-Za-z0-9]{31}")
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
_MOST_BURST = 1_000_000


def _wrong(value: object, expectation: str) -> WrongValueError:
    return WrongValueError(("", f"{shown(value)} is not {expectation}"))


def read_pem(value: object) -> str:
    """PEM text; never repeated: it may be a key."""
    if not isinstance(value, str) or "-----BEGIN " not in value:
        raise WrongValueError(("", "it is not PEM text; write it as a block that begins with |"))
    return value


def read_choice(value: object, choices: tuple[str, ...]) -> str:
    """One of these words."""
    if value not in choices:
        raise _wrong(value, f"one of {', '.join(choice or repr('') for choice in choices)}")
    return str(value)


def read_min_version(value: object) -> ssl.TLSVersion:
    """The oldest TLS version to speak."""
    return VERSIONS[read_choice(value, tuple(VERSIONS))]


def read_max_version(value: object) -> ssl.TLSVersion:
    """The newest TLS version to speak."""
    if value in ("TLS10", "TLS11"):
        raise WrongValueError(("", f"{shown(value)} is never spoken; give TLS12 or TLS13"))
    return VERSIONS[read_choice(value, tuple(VERSIONS))]


def read_ciphers(value: object) -> tuple[str, ...]:
    """Cipher suites by Go's names; an empty list is Python's own choice."""
    return _each_of(value, (*CIPHERS, *TLS13_CIPHERS), "a cipher suite that Go calls secure")


def read_curves(value: object) -> tuple[str, ...]:
    """At most one curve: Python's TLS can be held to one, and to no order of several."""
    curves = _each_of(value, tuple(CURVES), f"one of {', '.join(CURVES)}")
    if len(curves) > 1:
        raise WrongValueError(
            ("", "Python's TLS can be held to one curve only; give one, or leave the setting out")
        )
    return curves


def _each_of(value: object, known: tuple[str, ...], expectation: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(value, "a list of names")
    mistakes = [
        (f"[{index}]", f"{shown(name)} is not {expectation}")
        for index, name in enumerate(value)
        if name not in known
    ]
    if mistakes:
        raise WrongValueError(*mistakes)
    return tuple(value)


def read_names(value: object) -> tuple[str, ...]:
    """Alternative names of certificates."""
    if not isinstance(value, list) or not value:
        raise _wrong(value, "a list of names, such as [prometheus.example]")
    mistakes = [
        (f"[{index}]", f"{shown(name)} is not text; quote it")
        for index, name in enumerate(value)
        if not isinstance(name, str) or not name
    ]
    if mistakes:
        raise WrongValueError(*mistakes)
    return tuple(value)


def read_headers(value: object) -> dict[str, str]:
    """Headers for every answer; one without a value is not sent."""
    if not isinstance(value, dict):
        raise _wrong(value, "a mapping of headers to values")
    mistakes = [
        (f".{name}" if isinstance(name, str) and name in HEADERS else "", problem)
        for name, text in value.items()
        if (problem := _header_mistake(name, text))
    ]
    if mistakes:
        raise WrongValueError(*mistakes)
    return {name: str(text) for name, text in value.items() if text not in (None, "")}


def _header_mistake(name: object, text: object) -> str:
    """What is wrong with one header; empty if nothing is."""
    if not isinstance(name, str) or name not in HEADERS:
        return f"{shown(name)} cannot be set; known: {', '.join(HEADERS)}"
    if text is None or text == "":
        return ""
    if HEADERS[name]:
        return "" if text in HEADERS[name] else f"{shown(text)} is not {' or '.join(HEADERS[name])}"
    is_number = isinstance(text, int) and not isinstance(text, bool)  # X-XSS-Protection: 0
    is_good = is_number or (isinstance(text, str) and text.isascii() and text.isprintable())
    return "" if is_good else f"{shown(text)} is not printable ASCII text on one line; quote it"


def read_users(value: object) -> dict[str, str]:
    """Bcrypt hashes by user; a value is never repeated: it may be a password."""
    if not isinstance(value, dict):
        raise WrongValueError(("", "it is not a mapping of users to bcrypt hashes"))
    mistakes: list[tuple[str, str]] = []
    for user, hashed in value.items():
        if not isinstance(user, str) or not user.isprintable() or ":" in user or not user:
            mistakes.append(("", f"{shown(user)} is not a user's name: text without a colon"))
        elif not isinstance(hashed, str) or not is_hash(hashed):
            mistakes.append((f".{user}", "its value is not a whole bcrypt hash ($2y$10$…)"))
    if mistakes:
        raise WrongValueError(*mistakes)
    return dict(value)


def is_hash(text: str) -> bool:
    """Whether passwords can be checked against it."""
    parts = _HASH.fullmatch(text)
    if parts is None:
        return False
    try:
        bcrypt.hashpw(b"", f"$2b$04${parts[2]}".encode())  # a salt can have bits too many
    except ValueError:
        return False
    return True


def hash_cost(hashed: str) -> int:
    """Binary logarithm of the rounds of a bcrypt hash."""
    return int(hashed[4:6])


def read_interval(value: object) -> float:
    """Seconds of a duration as Go writes it; 0: none."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    text = value if isinstance(value, str) else ""
    parts = _DURATION.findall(text)
    if text == "0" or (parts and "".join(number + unit for number, unit in parts) == text):
        return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    raise _wrong(value, "a duration such as 1s, 500ms or 1m30s, or 0")


def read_burst(value: object) -> int:
    """How many requests may come at once."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_BURST:
        raise _wrong(value, f"a whole number from 0 to {_MOST_BURST}")
    return value


def read_section(value: object) -> Any:
    """A section that is looked into later."""
    return value
