"""Requests no client should send, each on a connection of its own, and what came back.

    statuses = await fuzz(port, 2_000, random.Random(7))

Behind each goes a proper request that asks for the connection's end, so that whatever was not
answered yet is, and nothing has to be waited for.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable

AT_ONCE = 16
PATIENCE_SECONDS = 20.0
NO_ANSWER = 0
"""Counted instead of a status where the connection was closed without a word."""

SENTINEL = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PATHS = (
    b"/",
    b"/metrics",
    b"/-/healthy",
    b"/-/ready",
    b"/api/v1/pipeline",
    b"/api/v1/timeline",
    b"/static/page.js",
    b"/static/",
    b"/nothing",
)
HEADERS = (
    b"Accept",
    b"Accept-Encoding",
    b"Connection",
    b"Content-Encoding",
    b"Content-Length",
    b"Content-Type",
    b"Cookie",
    b"Expect",
    b"Host",
    b"If-None-Match",
    b"Last-Event-ID",
    b"Range",
    b"Transfer-Encoding",
    b"Upgrade",
    b"Authorization",
    b"X-Forwarded-For",
)
VALUES = (
    b"",
    b"0",
    b"-1",
    b"99999999999999999999999",
    b"1e9",
    b"chunked",
    b"gzip, chunked",
    b"chunked, identity",
    b"gzip",
    b"gzip;q=0",
    b"gzip;q=x",
    b"deflate",
    b"br, zstd",
    b"close",
    b"upgrade",
    b"websocket",
    b"100-continue",
    b"200-maybe",
    b"application/openmetrics-text;version=x",
    b"application/openmetrics-text;version=1.0.0;escaping=\xff",
    b"text/plain;version=" + b"9" * 5000,
    b"text/plain;;;=,;version",
    b'W/"',
    b'"' * 99,
    b"*",
    b"Basic \xff\xfe",
    b"Basic " + b"=" * 50,
    b"bytes=0-",
    b"\xc3\x28",
    b"a\x00b",
    b"a\x0bb\x7f",
)
QUERIES = (
    b"?seconds=%ff",
    b"?seconds=1&seconds=x",
    b"?seconds=60&cells=20&until=0",
    b"?seconds=60&until=999999999999",
    b"?until=%00",
    b"?%",
    b"?%zz&=&&==",
    b"?seconds=%D9%A3",
    b"?" + b"a=b&" * 300,
    b"#fragment",
    b"?\xff\xfe",
)
ESCAPES = (b"%", b"%2", b"%2e%2e%2f", b"%00", b"%ff%fe", b"%C0%AF", b"..", b"\\", b"//", b"%0d%0a")
METHODS = (b"HEAD", b"POST", b"OPTIONS", b"PUT", b"get", b"X" * 40)
VERSIONS = (b"1.0", b"0.9", b"2.0", b"1.1.1", b"9")
WHOLE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    b"GET /metrics\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    b"GET http://other/metrics HTTP/1.1\r\nHost: other\r\n\r\n",
    b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET //[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT : HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;x=\xff\r\nhello\r\n0\r\nX: y\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
    b"GET / HTTP/1.1\r\nHost: x\r\n folded: yes\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\x05hello",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
)

Chance = random.Random


def request(chance: Chance) -> bytes:
    """One that may be nearly right."""
    target = chance.choice(PATHS)
    if chance.random() < 0.4:
        target += chance.choice(QUERIES)
    if chance.random() < 0.3:
        at = chance.randrange(len(target) + 1)
        target = target[:at] + chance.choice(ESCAPES) + target[at:]
    method = b"GET" if chance.random() < 0.7 else chance.choice(METHODS)
    version = b"1.1" if chance.random() < 0.9 else chance.choice(VERSIONS)
    lines = [b"%s %s HTTP/%s" % (method, target, version)]
    if chance.random() < 0.9:
        lines.append(b"Host: x")
    lines += [
        b"%s: %s" % (chance.choice(HEADERS), chance.choice(VALUES))
        for _ in range(chance.randrange(4))
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _mutated(chance: Chance) -> bytes:
    """Bytes of a request turned, doubled, lost or inserted."""
    data = bytearray(request(chance))
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data)) if data else 0
        kind = chance.randrange(4)
        if kind == 0 and data:
            data[at] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.randrange(1, 12)]
        elif kind == 2:
            data[at:at] = data[at : at + chance.randrange(1, 40)]
        else:
            data[at:at] = chance.randbytes(chance.randrange(1, 8))
    return bytes(data)


def _huge(chance: Chance) -> bytes:
    """Too long somewhere: the target, a header, or their number."""
    size = chance.choice((4_000, 8_190, 8_191, 16_384, 20_000, 70_000))
    filler = chance.choice((b"x", b"%41", b"\xff", b"/..", b"a=b&")) * size
    return chance.choice(
        (
            b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % filler[:size],
            b"GET /metrics?%s HTTP/1.1\r\nHost: x\r\n\r\n" % filler[:size],
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n" % filler[:size],
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n%s: y\r\n\r\n" % filler[:size],
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n%s\r\n" % (b"X: y\r\n" * (size // 6)),
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (size, filler[:size]),
        )
    )


KINDS: tuple[Callable[[Chance], bytes], ...] = (
    request,
    request,
    _mutated,
    _mutated,
    lambda chance: chance.choice(WHOLE),
    lambda chance: b"".join(request(chance) for _ in range(chance.randrange(2, 40))),
    lambda chance: chance.randbytes(chance.randrange(1, 400)),
    _huge,
)


async def fuzz(port: int, count: int, chance: Chance) -> Counter[int]:
    """Sends that many and returns how often each status came back."""
    statuses: Counter[int] = Counter()
    left = count

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            sent = chance.choice(KINDS)(chance)
            answer = await _exchange(port, sent + SENTINEL, chance)
            found = statuses_of(answer) or [NO_ANSWER]
            assert max(found) < 500, (sent, answer)
            statuses.update(found)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(client())
    return statuses


async def _exchange(port: int, sent: bytes, chance: Chance) -> bytes:
    """All that comes back until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            cut = chance.randrange(len(sent))
            writer.write(sent[:cut])
            await writer.drain()
            writer.write(sent[cut:])
            while piece := await reader.read(65_536):
                answer += piece
    except ConnectionError:
        pass  # it closed while more was coming
    except TimeoutError:
        raise AssertionError(f"not ended: {sent!r} was answered {answer!r}") from None
    finally:
        writer.transport.abort()
    return answer


def statuses_of(answer: bytes) -> list[int]:
    """Of the answers that stand there one behind the other; the last may be cut."""
    found, at = [], 0
    while start := re.compile(rb"HTTP/1\.[01] (\d{3}) ").match(answer, at):
        found.append(int(start[1]))
        end = answer.find(b"\r\n\r\n", at)
        if end < 0:
            break
        header = answer[at:end].lower()
        at = end + 4
        if length := re.search(rb"\ncontent-length: (\d+)", header):
            # HEAD tells a length and sends nothing.
            whole = answer[at : at + 5] != b"HTTP/"
            at += int(length[1]) if whole else 0
        elif b"transfer-encoding: chunked" in header and answer[at : at + 5] != b"HTTP/":
            at = answer.find(b"0\r\n\r\n", at) + 5
    return found
