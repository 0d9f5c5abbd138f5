"""A server with a web configuration: real handshakes, passwords, and changes while it runs."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import bcrypt
import pytest
import yaml

from exporter.diagnose.remote_exporter import PASSWORD_VARIABLE, ExporterError, RemoteExporter
from exporter.recent.records import RecentRecords
from exporter.web import WebServer
from exporter.web_config import guard
from tests import prometheus_server
from tests.certificates import Authority, Pair
from tests.prometheus_server import running_prometheus
from tests.running import PATIENCE_SECONDS, PREFIX, RunningExporter
from tests.unit.test_pipeline_model import T
from tests.unit.test_web import CONFIG, Served


def basic(user: str, password: str) -> dict[str, str]:
    """The header of these credentials."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


NOBODY: dict[str, str] = {}
ALICE = basic("alice", "open sesame")
HASH = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
OTHER_HASH = bcrypt.hashpw(b"close sesame", bcrypt.gensalt(4)).decode()
USERS = {"alice": HASH, "bob": OTHER_HASH}
PATHS = (
    "/metrics",
    "/-/healthy",
    "/-/ready",
    "/api/v1/pipeline",
    "/api/v1/timeline?seconds=1",
    "/api/v1/recording?seconds=1",
    "/",
    "/static/page.js",
)
"""What a GET gets once."""
OTHERS = ("/api/v1/live", "/-/reload")
"""The stream, and what a POST asks for."""


class Exporter:
    """A running server and the files that say who may ask it."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.authority = authority
        self.path = folder / "web.yaml"
        self.port = 0
        self.server = WebServer(Served(), lambda seconds: self._recent.recording(seconds, ()))
        self._recent = RecentRecords(lambda: T)
        self.tls: dict[str, Any] = {}

    def serve_with(self, pair: Pair, **more: object) -> None:
        self.tls = {"cert_file": str(pair.cert), "key_file": str(pair.key), **more}

    def write(self, **more: object) -> None:
        self.path.write_text(yaml.safe_dump({"tls_server_config": self.tls, **more}))

    @property
    def url(self) -> str:
        return f"{self.server.scheme}://127.0.0.1:{self.server.port}"

    def trusting(self, pair: Pair | None = None) -> ssl.SSLContext:
        """A client's side, with a certificate if it has one."""
        context = ssl.create_default_context(cafile=self.authority.cert)
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context

    async def status(
        self, path: str = "/metrics", headers: Mapping[str, str] = NOBODY, **session: Any
    ) -> int:
        """Over a connection of its own."""
        async with self.session(**session) as http, http.get(path, headers=headers) as answer:
            await answer.read()
            return answer.status

    def session(self, context: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=context or self.trusting())
        return aiohttp.ClientSession(self.url, connector=connector)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Exporter]:
        await self.server.start(replace(CONFIG, web_config_file=self.path))
        try:
            yield self
        finally:
            await self.server.close()


@pytest.fixture(name="authority", scope="module")
def fixture_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(name="pair", scope="module")
def fixture_pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture(name="exporter")
def fixture_exporter(tmp_path: Path, authority: Authority, pair: Pair) -> Exporter:
    exporter = Exporter(tmp_path, authority)
    exporter.serve_with(pair)
    return exporter


# --- passwords -------------------------------------------------------------------------------------


async def test_no_path_but_none_serves_without_a_password(exporter: Exporter) -> None:
    exporter.write(basic_auth_users=USERS)
    known = {str(route.resource.canonical) for route in exporter.server._runner.app.router.routes()}  # type: ignore[union-attr]  # all of ours have one
    served = {path.partition("?")[0] for path in PATHS}
    assert served | {"/static/{name}", *OTHERS} == {*known, "/static/page.js"}
    async with exporter.running(), exporter.session() as http:
        for path in (*PATHS, *OTHERS, "/nothing", "/static/nothing", "/%2e%2e/x", "//"):
            for method in ("GET", "HEAD", "POST", "OPTIONS", "TRACE", "PROPFIND"):
                for headers in (
                    {},
                    {"Authorization": "Basic YWxpY2U6eA=="},
                    {"Authorization": "x"},
                ):
                    async with http.request(method, path, headers=headers) as answer:
                        body = await answer.text()
                        assert answer.status == 401, (method, path, answer.status)
                        assert body == ("" if method == "HEAD" else "401 Unauthorized\n")
                        assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
        for path in PATHS:
            async with http.get(path, headers=ALICE) as answer:
                assert answer.status == 200, path
        assert await exporter.status("/nothing", ALICE) == 404
        assert await exporter.status(headers=basic("bob", "close sesame")) == 200
        assert await exporter.status(headers=basic("bob", "open sesame")) == 401


async def test_a_flood_of_guesses_is_told_to_come_later(exporter: Exporter) -> None:
    costly = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(8)).decode()
    exporter.write(basic_auth_users={"alice": costly})
    async with exporter.running(), exporter.session() as http:

        async def guess(number: int) -> int:
            async with http.get("/", headers=basic("alice", str(number))) as answer:
                return answer.status

        assert await exporter.status(headers=ALICE) == 200
        statuses = await asyncio.gather(*(guess(number) for number in range(40)))
        assert set(statuses) <= {401, 429}
        assert await exporter.status(headers=ALICE) == 200


async def test_headers_are_on_every_answer(exporter: Exporter) -> None:
    headers = {"X-Frame-Options": "deny", "Strict-Transport-Security": "max-age=60"}
    policy = {"Content-Security-Policy": "frame-ancestors 'none'"}
    exporter.write(
        basic_auth_users=USERS, http_server_config={"headers": headers | policy, "http2": True}
    )
    async with exporter.running(), exporter.session() as http:
        for path, auth, status in (
            *((path, ALICE, 200) for path in (*PATHS, "/api/v1/live")),
            ("/nothing", ALICE, 404),
            ("/api/v1/timeline?seconds=0", ALICE, 400),
            ("/", NOBODY, 401),
        ):
            async with http.get(path, headers=auth) as answer:
                assert answer.status == status
                assert headers.items() <= answer.headers.items()
                assert policy["Content-Security-Policy"] in answer.headers.getall(*policy)
        async with http.get("/", headers=ALICE) as answer:
            assert len(answer.headers.getall("Content-Security-Policy")) == 2, "the page's own, too"


async def test_requests_beyond_the_rate_are_told_to_come_later(exporter: Exporter) -> None:
    exporter.write(rate_limit={"interval": "1h", "burst": 3})
    async with exporter.running():
        assert [await exporter.status() for _ in range(4)] == [200, 200, 200, 429]


# --- TLS -------------------------------------------------------------------------------------------


def old_client(version: ssl.TLSVersion) -> ssl.SSLContext:
    """One that speaks this version alone, and would do so with anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    return context


async def version_spoken(port: int, client: ssl.SSLContext) -> str | None:
    """What was agreed on; `None`: nothing."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
    except (ssl.SSLError, ConnectionError):
        return None
    spoken: str = writer.get_extra_info("ssl_object").version()
    writer.close()
    return spoken


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@pytest.mark.parametrize("min_version", ["TLS10", "TLS11", None])
async def test_tls_1_1_is_refused_whatever_the_file_says(
    exporter: Exporter, pair: Pair, min_version: str | None
) -> None:
    careless = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    careless.load_cert_chain(pair.cert, pair.key)
    careless.minimum_version = ssl.TLSVersion.TLSv1_1
    careless.set_ciphers("ALL:@SECLEVEL=0")
    other = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=careless
    )
    client = old_client(ssl.TLSVersion.TLSv1_1)
    async with other:
        port = other.sockets[0].getsockname()[1]
        assert await version_spoken(port, client) == "TLSv1.1", "this client could"
    exporter.tls |= {"min_version": min_version} if min_version else {}
    exporter.write()
    async with exporter.running():
        port = exporter.server.port
        assert await version_spoken(port, client) is None
        assert await version_spoken(port, old_client(ssl.TLSVersion.TLSv1_2)) == "TLSv1.2"
        assert await version_spoken(port, old_client(ssl.TLSVersion.TLSv1_3)) == "TLSv1.3"


async def test_version_and_suites_are_held_to(exporter: Exporter) -> None:
    exporter.tls |= {
        "max_version": "TLS12",
        "cipher_suites": [
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        ],
    }
    exporter.write()
    async with exporter.running():
        port = exporter.server.port
        assert await version_spoken(port, old_client(ssl.TLSVersion.TLSv1_3)) is None
        client = old_client(ssl.TLSVersion.TLSv1_2)
        client.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305")
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-CHACHA20-POLY1305", "our order"
        writer.close()
        client = old_client(ssl.TLSVersion.TLSv1_2)
        client.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        assert await version_spoken(port, client) is None


async def test_the_curve_is_held_to(exporter: Exporter) -> None:
    exporter.tls["curve_preferences"] = ["CurveP384"]
    exporter.write()
    client = old_client(ssl.TLSVersion.TLSv1_3)
    async with exporter.running():
        for curve, expected in (("secp384r1", "TLSv1.3"), ("prime256v1", None)):
            client.set_ecdh_curve(curve)
            assert await version_spoken(exporter.server.port, client) == expected


async def test_plain_http_to_a_tls_port_gets_nothing(exporter: Exporter) -> None:
    exporter.write()
    async with exporter.running():
        reader, writer = await asyncio.open_connection("127.0.0.1", exporter.server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        writer.close()


async def answered(exporter: Exporter, context: ssl.SSLContext) -> bool:
    try:
        return await exporter.status(context=context) == 200
    except (aiohttp.ClientError, ssl.SSLError):
        return False


@pytest.mark.parametrize(
    ("settings", "let_in"),
    [
        ({"client_auth_type": "NoClientCert"}, {"none", "ours", "named", "foreign"}),
        ({"client_auth_type": "RequestClientCert"}, {"none", "ours", "named", "foreign"}),
        ({"client_auth_type": "VerifyClientCertIfGiven"}, {"none", "ours", "named"}),
        ({"client_auth_type": "RequireAnyClientCert"}, {"ours", "named"}),
        ({"client_auth_type": "RequireAndVerifyClientCert"}, {"ours", "named"}),
        (
            {
                "client_auth_type": "RequireAndVerifyClientCert",
                "client_allowed_sans": ["2001:db8:0::7"],
            },
            {"named"},
        ),
        (
            {
                "client_auth_type": "RequireAndVerifyClientCert",
                "client_allowed_sans": ["x", "scraper.example"],
                "max_version": "TLS12",
            },
            {"named"},
        ),
    ],
    ids=["none", "asked", "if given", "any", "verified", "address", "name"],
)
async def test_clients_must_show_what_the_file_asks_for(
    exporter: Exporter,
    tmp_path: Path,
    settings: Mapping[str, Any],
    let_in: set[str],
) -> None:
    clients = {
        "none": None,
        "ours": exporter.authority.issue("ours", "DNS:other.example"),
        "named": exporter.authority.issue("named", "DNS:scraper.example,IP:2001:db8::7"),
        "foreign": Authority(tmp_path, "foreign-ca").issue("foreign", "DNS:scraper.example"),
    }
    if settings["client_auth_type"] != "NoClientCert":
        exporter.tls["client_ca_file"] = str(exporter.authority.cert)
    exporter.tls |= settings
    exporter.write()
    async with exporter.running():
        found = {
            name
            for name, pair in clients.items()
            if await answered(exporter, exporter.trusting(pair))
        }
    assert found == let_in


# --- changes ---------------------------------------------------------------------------------------


async def serial(exporter: Exporter) -> str:
    _, writer = await asyncio.open_connection(
        "127.0.0.1", exporter.server.port, ssl=exporter.trusting(), server_hostname="localhost"
    )
    found: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return found


async def test_a_new_certificate_is_shown_to_the_next_connection(
    exporter: Exporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = exporter.authority.issue("first"), exporter.authority.issue("second")
    files = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    for source, target in zip(first, files, strict=True):
        target.write_bytes(source.read_bytes())
    exporter.serve_with(files)
    exporter.write()
    async with exporter.running(), exporter.session() as http:
        before = await serial(exporter)
        async with http.get("/metrics") as answer:
            assert answer.status == 200
        files.cert.write_bytes(second.cert.read_bytes())
        assert await serial(exporter) == before, "half of a pair is not used"
        assert exporter.server.web_config is not None
        assert not exporter.server.web_config.last_reload_successful
        assert await serial(exporter) == before
        assert caplog.text.count("the key is not that of the certificate") == 1, "said once"
        files.key.write_bytes(second.key.read_bytes())
        assert await serial(exporter) != before
        assert exporter.server.web_config.last_reload_successful
        async with http.get("/metrics") as answer:
            assert answer.status == 200, "connections from before go on"


async def test_users_and_headers_change_at_once(exporter: Exporter) -> None:
    exporter.write(basic_auth_users={"alice": HASH})
    async with exporter.running(), exporter.session() as http:

        async def asked() -> tuple[int, str | None]:
            async with http.get("/-/healthy", headers=ALICE) as answer:
                return answer.status, answer.headers.get("X-Frame-Options")

        assert await asked() == (200, None)
        exporter.write(basic_auth_users={"alice": OTHER_HASH})
        assert await asked() == (401, None)
        headers = {"headers": {"X-Frame-Options": "deny"}}
        exporter.write(basic_auth_users={"alice": HASH}, http_server_config=headers)
        assert await asked() == (200, "deny")
        exporter.write(basic_auth_users={"bob": HASH})
        assert await asked() == (401, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("tls_server_config: {cert_file: [", "not YAML"),
        ("rate_limits: 1", "rate_limits: unknown setting; did you mean rate_limit?"),
        ("basic_auth_users: {alice: x}", "not a whole bcrypt hash"),
        ("basic_auth_users: {mallory: HASH}", "TLS is turned on or off by a restart only"),
        ("tls_server_config: AS_IT_IS", "the last user goes by a restart only"),
        (
            "{tls_server_config: NO_AUTH, basic_auth_users: {alice: HASH}}",
            "less is asked for after a restart only",
        ),
    ],
)
async def test_a_bad_change_changes_nothing_and_is_said_once(
    exporter: Exporter, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    without = f"{{cert_file: {exporter.tls['cert_file']}, key_file: {exporter.tls['key_file']}}}"
    exporter.tls |= {
        "client_ca_file": str(exporter.authority.cert),
        "client_auth_type": "VerifyClientCertIfGiven",
    }
    exporter.write(basic_auth_users={"alice": HASH})
    as_it_is = yaml.safe_dump(exporter.tls, default_flow_style=True).strip()
    for word, meaning in (("HASH", HASH), ("NO_AUTH", without), ("AS_IT_IS", as_it_is)):
        text = text.replace(word, meaning)
    async with exporter.running():
        exporter.path.write_text(text)
        for _ in range(3):
            assert await exporter.status() == 401
            assert await exporter.status(headers=ALICE) == 200
        assert exporter.server.web_config is not None
        assert not exporter.server.web_config.last_reload_successful
    assert caplog.text.count(said) == 1
    assert caplog.text.count("the one before stays in force") == 1


async def test_a_file_that_went_away_changes_nothing_until_it_is_back(exporter: Exporter) -> None:
    exporter.write(basic_auth_users={"alice": HASH})

    async def shown() -> bool:
        async with exporter.session() as http, http.get("/metrics", headers=ALICE) as answer:
            assert answer.status == 200
            name = f"\n{PREFIX}exporter_config_last_reload_successful"
            return f"{name} 1.0\n" in await answer.text()

    async with exporter.running():
        assert await shown()
        text = exporter.path.read_text()
        exporter.path.unlink()
        assert await exporter.status() == 401
        assert not await shown()
        exporter.path.write_text(text)
        assert await shown()


async def test_a_stream_ends_with_its_user_and_goes_on_for_the_others(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LOOK_SECONDS", 0.05)
    exporter.write(basic_auth_users=USERS)
    bob = basic("bob", "close sesame")
    async with (
        exporter.running(),
        exporter.session() as http,
        http.get("/api/v1/live", headers=ALICE) as hers,
        http.get("/api/v1/live", headers=bob) as his,
    ):
        assert (hers.status, his.status) == (200, 200)
        exporter.write(basic_auth_users={"bob": OTHER_HASH})
        with pytest.raises(aiohttp.ClientError):  # nobody asks anything meanwhile
            async with asyncio.timeout(PATIENCE_SECONDS):
                await hers.read()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await his.content.readline()
            assert not his.content.at_eof()


async def test_a_password_asked_for_from_now_on_ends_streams_that_had_none(
    exporter: Exporter,
) -> None:
    exporter.write()
    async with (
        exporter.running(),
        exporter.session() as http,
        http.get("/api/v1/live") as stream,
    ):
        exporter.write(basic_auth_users=USERS)
        assert await exporter.status() == 401
        with pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await stream.read()


# --- who asks --------------------------------------------------------------------------------------


async def test_diagnose_asks_with_a_password_over_tls(exporter: Exporter, tmp_path: Path) -> None:
    exporter.write(basic_auth_users={"alice": HASH})
    ca = exporter.authority.cert
    async with exporter.running():
        whole = exporter.url.replace("//", "//alice:open%20sesame@")
        async with RemoteExporter(whole, ca) as remote:
            await remote.check(tmp_path)
        user = exporter.url.replace("//", "//alice@")
        async with RemoteExporter(user, ca, {PASSWORD_VARIABLE: "open sesame"}) as remote:
            await remote.check(tmp_path)
        for address, trusted, said in (
            (exporter.url, ca, f"answered 401; give its user .* variable {PASSWORD_VARIABLE}"),
            (user, ca, "answered 401; are user and password right"),
            (whole, None, r"its certificate is refused \(.*\); --exporter-ca FILE names"),
            (whole.replace("https", "http"), ca, "should the address begin with https://"),
        ):
            async with RemoteExporter(address, trusted) as remote:
                with pytest.raises(ExporterError, match=said) as error:
                    await remote.pipeline()
                assert "sesame" not in str(error.value)
    for path in (tmp_path / "none", exporter.path):
        with pytest.raises(ExporterError, match="cannot use --exporter-ca"):
            RemoteExporter(exporter.url, path)


async def test_diagnose_says_that_a_client_certificate_is_wanted(exporter: Exporter) -> None:
    exporter.tls |= {
        "client_ca_file": str(exporter.authority.cert),
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    exporter.write()
    async with exporter.running(), RemoteExporter(exporter.url, exporter.authority.cert) as remote:
        with pytest.raises(ExporterError, match="does it want a client's certificate"):
            await remote.pipeline()


@pytest.mark.skipif(
    prometheus_server.why_not() is not None, reason=str(prometheus_server.why_not())
)
def test_a_real_prometheus_scrapes_over_tls_with_a_password(
    exporter: Exporter, tmp_path: Path
) -> None:
    exporter.write(basic_auth_users={"alice": HASH})
    options = ["--web.config.file", str(exporter.path)]
    with RunningExporter(["serve", "--stdin", "--no-nvml", *options], tmp_path) as running:
        target = {
            "scheme": "https",
            "basic_auth": {"username": "alice", "password": "open sesame"},
            "tls_config": {"ca_file": str(exporter.authority.cert)},
        }
        jobs = {
            "right": (f"127.0.0.1:{running.port}", 1),
            "wrong": (f"127.0.0.1:{running.port}", 1),
        }
        wrong = target | {"basic_auth": {"username": "alice", "password": "close sesame"}}
        more = {"right": target, "wrong": wrong}
        with running_prometheus(tmp_path, jobs, more=more) as prometheus:

            def health() -> dict[str, tuple[str, str]]:
                targets = prometheus.ask("targets")["activeTargets"]
                return {one["labels"]["job"]: (one["health"], one["lastError"]) for one in targets}

            expected = {
                "right": ("up", ""),
                "wrong": ("down", "server returned HTTP status 401 Unauthorized"),
            }
            prometheus.wait_until(lambda: health() == expected, PATIENCE_SECONDS)
        assert "Traceback" not in running.said
        assert running.terminate() == 0
