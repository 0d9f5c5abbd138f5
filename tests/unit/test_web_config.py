"""The web configuration file: what it says, and what is said of its mistakes."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import bcrypt
import pytest
import yaml

from exporter.cli import EXIT_ERROR, EXIT_OK, main
from exporter.config import ConfigError
from exporter.web_config.document import RateLimit, TlsSettings, WebConfig, parse
from exporter.web_config.file import WebConfigFile
from exporter.web_config.rate import Bucket
from exporter.web_config.settings import SECTIONS, WEB_SETTINGS
from exporter.web_config.values import CIPHERS, CURVES, TLS13_CIPHERS
from tests.certificates import Authority, Pair

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "web-config.yaml"
HASH = bcrypt.hashpw(b"open sesame", b"$2b$04$abcdefghijklmnopqrstuu").decode()
"""With a fixed salt: it is part of test names, which all workers have to agree on."""
FOLDER = Path("/etc/exporter")
PAIR = "cert_file: s.crt, key_file: s.key"

EVERYTHING = f"""
tls_server_config:
  cert_file: server.crt
  key_file: /keys/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: clients.crt
  client_allowed_sans: [prometheus.example, 192.0.2.7]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP384]
http_server_config:
  http2: true
  headers:
    Content-Security-Policy: frame-ancestors 'none'
    X-Frame-Options: sameorigin
    X-Content-Type-Options: nosniff
    X-XSS-Protection: ""
    Strict-Transport-Security: max-age=31536000
basic_auth_users:
  prometheus: {HASH}
rate_limit: {{interval: 1m0.5s, burst: 20}}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse(text, FOLDER)
    return str(error.value).split("\n")


def test_every_setting_of_the_format_is_read() -> None:
    assert parse(EVERYTHING, FOLDER) == WebConfig(
        tls=TlsSettings(
            cert_file=FOLDER / "server.crt",
            key_file=Path("/keys/server.key"),
            client_ca_file=FOLDER / "clients.crt",
            client_auth=ssl.CERT_REQUIRED,
            client_allowed_sans=("prometheus.example", "192.0.2.7"),
            cipher_suites=("ECDHE-ECDSA-AES256-GCM-SHA384",),
            prefer_server_cipher_suites=False,
            curve="secp384r1",
        ),
        headers={
            "Content-Security-Policy": "frame-ancestors 'none'",
            "X-Frame-Options": "sameorigin",
            "X-Content-Type-Options": "nosniff",
            "Strict-Transport-Security": "max-age=31536000",
        },
        users={"prometheus": HASH},
        rate_limit=RateLimit(60.5, 20),
    )


def test_what_is_left_out_is_off() -> None:
    for text in ("tls_server_config: {}", "basic_auth_users:", "rate_limit: {interval: 0}"):
        assert parse(text, FOLDER) == WebConfig()


def test_all_mistakes_are_named_at_once_with_their_places() -> None:
    found = mistakes(
        f"""
tls_server_config:
  cert_file: a.crt
  client_auth_type: RequireClientCerts
  min_version: TLS1.2
  cipher_suites: [TLS_ECDHE_RSA_WITH_RC4_128_SHA]
  curve_preferences: [secp256k1]
http_server_config:
  http2: maybe
  headers: {{Server: nginx, X-Frame-Options: allow, X-XSS-Protection: "a\\nb"}}
basic_auth_users: {{alice: geheim, "b:ob": "{HASH}"}}
rate_limit: {{interval: 1, burst: -1}}
users: {{}}
min_version: TLS12
"""
    )
    assert [line.partition(":")[0] for line in found] == [
        "basic_auth_users.alice",
        "basic_auth_users",
        "users",
        "min_version",
        "tls_server_config.client_auth_type",
        "tls_server_config.min_version",
        "tls_server_config.cipher_suites[0]",
        "tls_server_config.curve_preferences[0]",
        "http_server_config.http2",
        "http_server_config.headers",
        "http_server_config.headers.X-Frame-Options",
        "http_server_config.headers.X-XSS-Protection",
        "rate_limit.interval",
        "rate_limit.burst",
        "tls_server_config",
    ]
    assert "min_version: unknown setting; it belongs to `tls_server_config`" in found
    assert "tls_server_config: no private key is given; TLS needs `key_file`" in found
    assert "geheim" not in "".join(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("- 1", "the configuration: [1] is not a mapping"),
        ("tls_server_config: [", "not YAML"),
        ("tls_server_config: {min_version: TLS13}", "no certificate is given"),
        (f"tls_server_config: {{{PAIR}, max_version: TLS11}}", "'TLS11' is never spoken"),
        (f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}", "newer than"),
        (f"tls_server_config: {{{PAIR}, cert: x}}", "it is not PEM text"),
        (f"tls_server_config: {{{PAIR}, key: -----BEGIN x}}", "key_file is given, too"),
        (f"tls_server_config: {{{PAIR}, client_ca_file: c.crt}}", "no certificate asked for"),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}",
            "RequireAnyClientCert needs `client_ca_file`",
        ),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven, "
            "client_ca_file: c.crt, client_allowed_sans: [x]}",
            "a client without a certificate would pass by",
        ),
        (
            f"tls_server_config: {{{PAIR}, curve_preferences: [X25519, CurveP256]}}",
            "one curve only",
        ),
        (
            f"tls_server_config: {{{PAIR}, cipher_suites: [{TLS13_CIPHERS[0]}], max_version: TLS12}}",
            "TLS 1.2 has none of these",
        ),
        ("rate_limit: {interval: 1s}", "with 0 nobody could ask"),
        ("rate_limit: {interval: 1 s, burst: 1}", "is not a duration"),
        ("basic_auth_users: {1: x}", "1 is not a user's name"),
        (f"basic_auth_users: {{a: {HASH[:-1]}}}", "not a whole bcrypt hash"),
        (f"basic_auth_users: {{a: $2y$03{HASH[6:]}}}", "not a whole bcrypt hash"),
        (f"basic_auth_users: {{a: {HASH}, a: {HASH}}}", "the key 'a' is written twice"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, said: str) -> None:
    assert said in mistakes(text)[0]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("min_version: TLS10", "TLS 1.2 is the oldest that is spoken"),
        ("client_auth_type: RequestClientCert", "no certificate is asked for"),
        ("client_auth_type: RequireAnyClientCert, client_ca_file: c", "certificates are verified"),
    ],
)
def test_what_is_done_otherwise_is_said(text: str, note: str) -> None:
    config = parse(f"tls_server_config: {{{PAIR}, {text}}}", FOLDER)
    (said,) = config.notes
    assert note in said
    assert config.tls is not None
    assert config.tls.min_version is ssl.TLSVersion.TLSv1_2


def test_suites_of_tls_13_alone_leave_nothing_to_tls_12() -> None:
    config = parse(f"tls_server_config: {{{PAIR}, cipher_suites: [{TLS13_CIPHERS[0]}]}}", FOLDER)
    assert config.tls is not None
    assert config.tls.min_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_hashes_of_every_tool_are_taken(prefix: str) -> None:
    parse(f"basic_auth_users: {{a: {prefix}{HASH[4:]}}}", FOLDER)


def test_openssl_knows_every_suite_and_curve() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in CIPHERS.values():
        context.set_ciphers(name)
        assert name in {cipher["name"] for cipher in context.get_ciphers()}
    for name in set(CURVES.values()) - {"X25519"}:  # Debian's Python 3.11.2 cannot
        context.set_ecdh_curve(name)


def test_a_curve_is_held_to_or_refused(tmp_path: Path, pair: Pair) -> None:
    path = tls_file(tmp_path, *pair, ", curve_preferences: [X25519]")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ecdh_curve("X25519")
    except ssl.SSLError:
        assert "this Python cannot be held to X25519" in refusal(path)
    else:
        WebConfigFile(path).close()


def test_a_bucket_gives_what_it_holds_and_then_what_comes_in() -> None:
    bucket = Bucket(RateLimit(interval_seconds=2.0, burst=3), now=100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(101.9), bucket.take(102.0), bucket.take(102.1)] == [False, True, False]
    assert [bucket.take(900.0) for _ in range(4)] == [True, True, True, False]


# --- files -----------------------------------------------------------------------------------------


@pytest.fixture(name="authority", scope="module")
def fixture_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(name="pair", scope="module")
def fixture_pair(authority: Authority) -> Pair:
    return authority.issue("server")


def tls_file(folder: Path, cert: Path, key: Path, more: str = "") -> Path:
    path = folder / "web.yaml"
    path.write_text(f"tls_server_config: {{cert_file: {cert}, key_file: {key}{more}}}\n")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        WebConfigFile(path)
    return str(error.value)


def test_files_that_cannot_be_used_are_a_sentence_each(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    other = authority.issue("other")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    damaged = tmp_path / "damaged.key"
    damaged.write_text(pair.key.read_text()[:80] + "\n-----END PRIVATE KEY-----\n")
    for cert, key, said in (
        (tmp_path / "none.crt", pair.key, "cannot read .*none.crt: no such file"),
        (pair.cert, tmp_path, "cannot read .*: is a directory"),
        (pipe, pair.key, "cannot read .*: it is no plain file"),
        (pair.key, pair.cert, "there is no certificate in PEM form in"),
        (pair.cert, other.key, "the key is not that of the certificate"),
        (pair.cert, authority.encrypted(pair.key), "the private key is encrypted"),
        (pair.cert, damaged, "certificate or key is damaged"),
    ):
        with pytest.raises(ConfigError, match=said):
            WebConfigFile(tls_file(tmp_path, cert, key))
    assert "it is no plain file" in refusal(pipe)
    both = refusal(tls_file(tmp_path, tmp_path / "a", tmp_path / "b"))
    assert both.count("no such file") == 2


def test_a_suite_that_the_key_cannot_serve_is_found_at_the_start(
    tmp_path: Path, pair: Pair
) -> None:
    suites = ", max_version: TLS12, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]"
    assert "no client could connect (NO_SHARED_CIPHER)" in refusal(
        tls_file(tmp_path, *pair, suites)
    )


def test_an_expired_certificate_is_served_with_a_warning(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    WebConfigFile(tls_file(tmp_path, *authority.issue("old", days=-1))).close()
    assert "clients will refuse the certificate: certificate has expired" in caplog.text


def test_texts_in_the_file_do_for_files(tmp_path: Path, pair: Pair, authority: Authority) -> None:
    document = {
        "cert": pair.cert.read_text(),
        "key": pair.key.read_text(),
        "client_ca": authority.cert.read_text(),
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    path = tmp_path / "web.yaml"
    path.write_text(yaml.safe_dump({"tls_server_config": document}))
    file = WebConfigFile(path)
    assert file.context().verify_mode is ssl.CERT_REQUIRED
    assert pair.key.read_text()[90:110] not in repr(file.in_force.config)
    file.close()


def test_a_pipe_in_the_place_of_the_file_keeps_nobody_waiting(tmp_path: Path, pair: Pair) -> None:
    path = tls_file(tmp_path, *pair)
    file = WebConfigFile(path)
    before = file.in_force
    path.unlink()
    os.mkfifo(path)
    assert file.rules() is before
    file.close()


def test_allowed_names_are_not_given_up_while_it_runs(
    tmp_path: Path, pair: Pair, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    asked = f", client_auth_type: RequireAndVerifyClientCert, client_ca_file: {authority.cert}"
    file = WebConfigFile(tls_file(tmp_path, *pair, f"{asked}, client_allowed_sans: [a]"))
    before = file.in_force
    tls_file(tmp_path, *pair, asked)
    assert file.rules() is before
    assert "client_allowed_sans: every name is allowed after a restart only" in caplog.text
    tls_file(tmp_path, *pair, f"{asked}, client_allowed_sans: [b]")
    assert file.rules() is not before
    file.close()


def test_the_command_checks_both_files_and_names_all_mistakes(
    tmp_path: Path, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    config, web = tmp_path / "exporter.yaml", tls_file(tmp_path, *pair)
    config.write_text("servers: [{unit: a}]")
    arguments = ["check-config", str(config), "--web.config.file", str(web)]
    assert main(arguments) == EXIT_OK
    assert capsys.readouterr().out == f"{config}: good (servers: a)\n{web}: good\n"
    config.write_text("server: 1")
    web.write_text("tls: 1")
    assert main(arguments) == EXIT_ERROR
    said = capsys.readouterr().err
    assert "server: unknown setting; did you mean servers?" in said
    assert f"{web}: tls: unknown setting" in said
    assert main(["check-config"]) == EXIT_ERROR
    assert main(["check-config", "--web.config.file", str(tmp_path / "none")]) == EXIT_ERROR
    assert "cannot read the file: no such file" in capsys.readouterr().err


def test_a_bad_file_ends_the_start_with_its_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "web.yaml"
    path.write_text("tls_server_config: {cert_file: a, key_file: b}")
    sources = ["--stdin", "--no-nvml", f"--state-file={tmp_path / 'state'}"]
    for command in (["serve", *sources], ["demo"]):
        options = ["--listen", "127.0.0.1:0", "--web.config.file", str(path)]
        assert main([*command, *options]) == EXIT_ERROR
        assert f"{path}: tls_server_config.key_file: cannot read" in capsys.readouterr().err


# --- the example -----------------------------------------------------------------------------------


def test_the_example_is_good_and_names_every_setting(tmp_path: Path, pair: Pair) -> None:
    shutil.copy(pair.cert, tmp_path / "server.crt")
    shutil.copy(pair.key, tmp_path / "server.key")
    path = Path(shutil.copy(EXAMPLE, tmp_path))
    file = WebConfigFile(path)
    assert file.in_force.passwords is not None
    file.close()
    text = EXAMPLE.read_text()
    for setting in (*WEB_SETTINGS, *(each for some in SECTIONS.values() for each in some)):
        assert f"{setting.key}:" in text, setting.key


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_example_and_what_we_take(
    tmp_path: Path, pair: Pair, authority: Authority
) -> None:
    for name, source in (("server.crt", pair.cert), ("clients.crt", authority.cert)):
        shutil.copy(source, tmp_path / name)
    shutil.copy(pair.key, tmp_path / "server.key")
    example = Path(shutil.copy(EXAMPLE, tmp_path))
    whole = tmp_path / "whole.yaml"
    known = EVERYTHING.replace("/keys/", "").replace('X-XSS-Protection: ""', "X-XSS-Protection: 1")
    # Debian's promtool is older than these two settings.
    newer = ("client_allowed_sans", "rate_limit")
    lines = known.split("\n")
    whole.write_text("\n".join(line for line in lines if not line.strip().startswith(newer)))
    command = ["promtool", "check", "web-config", str(example), str(whole)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    WebConfigFile(whole).close()
