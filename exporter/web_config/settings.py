"""Every setting of a web configuration file: its name, its default, its meaning, how it is read.

The one table behind validation and documentation; the format is Prometheus exporter-toolkit's.
"""

from __future__ import annotations

from functools import partial

from exporter.setting_values import read_flag, read_path
from exporter.settings import Setting
from exporter.web_config import values

VERIFIED = "RequireAndVerifyClientCert"
IF_GIVEN = "VerifyClientCertIfGiven"
ANY = ("RequireAnyClientCert", "RequireClientCert")
ASKED = "RequestClientCert"
_AUTH_TYPES = ("NoClientCert", ASKED, *ANY, IF_GIVEN, VERIFIED, "")

TLS_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "cert_file",
        "",
        "The certificate, with those between it and its issuer, as PEM.",
        "server.crt",
        read_path,
    ),
    Setting("key_file", "", "Its private key as PEM, not encrypted.", "server.key", read_path),
    Setting("cert", "", "The certificate itself, instead of `cert_file`.", "", values.read_pem),
    Setting("key", "", "The key itself, instead of `key_file`.", "", values.read_pem),
    Setting(
        "client_auth_type",
        "NoClientCert",
        f"Whether clients must show a certificate. `{VERIFIED}`: yes; `{IF_GIVEN}`: one that is "
        f"shown must be good; `{ASKED}`: none is asked for, as it would prove nothing; "
        f"`{ANY[0]}`: as `{VERIFIED}`, with the same need of a CA.",
        VERIFIED,
        partial(values.read_choice, choices=_AUTH_TYPES),
    ),
    Setting("client_ca_file", "", "Who issues clients' certificates, as PEM.", "ca.crt", read_path),
    Setting("client_ca", "", "The same itself.", "", values.read_pem),
    Setting(
        "client_allowed_sans",
        "",
        "A client's certificate must have one of these alternative names (DNS, IP, e-mail, URI). "
        "Left out: every certificate of the CA will do.",
        "[prometheus.example]",
        values.read_names,
    ),
    Setting(
        "min_version",
        "TLS12",
        "The oldest version; TLS 1.0 and 1.1 are never spoken, whatever stands here.",
        "TLS13",
        values.read_min_version,
    ),
    Setting("max_version", "TLS13", "The newest version.", "TLS12", values.read_max_version),
    Setting(
        "cipher_suites",
        "",
        "Cipher suites of TLS 1.2, by Go's names; those of TLS 1.3 cannot be chosen. "
        "Left out: Python's choice.",
        "[TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]",
        values.read_ciphers,
    ),
    Setting(
        "prefer_server_cipher_suites",
        "true",
        "Whether the order of the suites here wins over the client's.",
        "false",
        read_flag,
    ),
    Setting(
        "curve_preferences",
        "",
        "The one curve to agree on keys with: CurveP256, CurveP384, CurveP521 or X25519; Python "
        "takes no more than one. Left out: OpenSSL's choice.",
        "[CurveP256]",
        values.read_curves,
    ),
)
HTTP_SETTINGS: tuple[Setting, ...] = (
    Setting("http2", "true", "Taken and without effect: HTTP/1.1 is spoken.", "false", read_flag),
    Setting(
        "headers",
        "",
        "Sent with every answer; " + ", ".join(f"`{name}`" for name in values.HEADERS) + ".",
        "{X-Frame-Options: deny}",
        values.read_headers,
    ),
)
RATE_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "interval",
        "0",
        "Time until one more request may come, of all clients together; 0: no limit.",
        "100ms",
        values.read_interval,
    ),
    Setting("burst", "0", "How many may come at once.", "20", values.read_burst),
)
WEB_SETTINGS: tuple[Setting, ...] = (
    Setting("tls_server_config", "", "TLS. Left out: plain HTTP.", "", values.read_section),
    Setting("http_server_config", "", "Headers.", "", values.read_section),
    Setting(
        "basic_auth_users",
        "",
        "Users and the bcrypt hashes of their passwords. Left out: everybody may ask.",
        "{prometheus: $2y$10$…}",
        values.read_users,
    ),
    Setting("rate_limit", "", "How often may be asked.", "", values.read_section),
)

SECTIONS = {
    "tls_server_config": TLS_SETTINGS,
    "http_server_config": HTTP_SETTINGS,
    "rate_limit": RATE_SETTINGS,
}
"""The settings inside those of `WEB_SETTINGS` that have some."""
