"""The web configuration file as it is now: looked at with every request, read when it changed.

A file that cannot be used changes nothing but the log. A change never takes protection away:
that needs a restart, so that a file half written opens no door.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from exporter.config import ConfigError
from exporter.web_config.document import WebConfig, parse
from exporter.web_config.passwords import Passwords
from exporter.web_config.rate import Bucket
from exporter.web_config.tls import Pems, read_pems, read_plain, server_context

log = logging.getLogger(__name__)

_MOST_BYTES = 256 << 10
_YOUNG_NANOSECONDS = 1_000_000_000
_Stamp: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WebRules:
    """A web configuration that is in force."""

    config: WebConfig
    context: ssl.SSLContext | None
    """`None`: plain HTTP."""
    passwords: Passwords | None
    """`None`: everybody may ask."""
    bucket: Bucket | None
    """`None`: as often as they like."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers for every answer."""
        return self.config.headers


class WebConfigFile:
    """A file, and the newest of its contents that could be used.

    Attributes:
        in_force: What was in force at the last look.
        last_reload_successful: Whether that is what the files say now.
    """

    def __init__(self, path: Path) -> None:
        """Reads it.

        Raises:
            ConfigError: It cannot be used: every mistake is named.
        """
        self._path = path
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="bcrypt")
        self._text: bytes | None = None
        self._parsed: WebConfig | str = ""
        """What that text asks for, or its mistakes."""
        self._stamps: tuple[_Stamp, ...] = ()
        self.last_reload_successful = True
        try:
            self._seen: tuple[WebConfig, Pems | None] | str = self._read()
            self.in_force = self._made(*self._seen, None)
        except ConfigError as error:
            raise ConfigError(_prefixed(f"{path}: ", error)) from error
        self._say("web configuration", self.in_force)

    def close(self) -> None:
        """Checks of passwords that wait are given up."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def rules(self) -> WebRules:
        """What is in force now, after a look at the files."""
        stamps = self._look()
        if stamps == self._stamps:
            return self.in_force
        try:
            seen = self._read()
        except ConfigError as error:
            if str(error) != self._seen:
                self._seen = str(error)
                self._refuse(error)
        else:
            if seen != self._seen:
                self._seen = seen
                self._take(*seen)
        # What changed a moment ago may change once more within the resolution of its stamp.
        self._stamps = () if _is_young(stamps) else stamps
        return self.in_force

    def _look(self) -> tuple[_Stamp, ...]:
        tls = None if isinstance(self._parsed, str) else self._parsed.tls
        files = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls else ()
        return tuple(_stamp(path) for path in (self._path, *files) if path is not None)

    def context(self) -> ssl.SSLContext:
        """What accepts a connection now.

        Raises:
            RuntimeError: TLS is off.
        """
        context = self.rules().context
        if context is None:
            raise RuntimeError("the web configuration has no TLS")
        return context

    def _take(self, config: WebConfig, pems: Pems | None) -> None:
        try:
            rules = self._made(config, pems, self.in_force)
            _check_change(self.in_force.config, config)
        except ConfigError as error:
            self._refuse(error)
            return
        self.in_force = rules
        self.last_reload_successful = True
        self._say("web configuration read again", rules)

    def _refuse(self, error: ConfigError) -> None:
        self.last_reload_successful = False
        log.warning(
            "a changed web configuration cannot be used, the one before stays in force file=%s\n%s",
            self._path,
            _prefixed("  ", error),
        )

    def _read(self) -> tuple[WebConfig, Pems | None]:
        """Reads the files; a text that did not change is not parsed again."""
        try:
            text = read_plain(self._path, _MOST_BYTES + 1)
        except OSError as error:
            raise ConfigError(
                f"cannot read the file: {(error.strerror or '').lower()}; "
                "make it one that the exporter's user can read"
            ) from error
        if text != self._text:
            self._text = text
            try:
                self._parsed = self._parse(text)
            except ConfigError as error:
                self._parsed = str(error)
        if isinstance(self._parsed, str):
            raise ConfigError(self._parsed)
        tls = self._parsed.tls
        return self._parsed, None if tls is None else read_pems(tls)

    def _parse(self, text: bytes) -> WebConfig:
        if len(text) > _MOST_BYTES:
            raise ConfigError(f"it is larger than {_MOST_BYTES} bytes")
        try:
            return parse(text.decode(), self._path.parent)
        except UnicodeDecodeError as error:
            raise ConfigError("it is not UTF-8 text") from error

    def _made(self, config: WebConfig, pems: Pems | None, before: WebRules | None) -> WebRules:
        """Rules of what was read; what did not change keeps its memory."""
        context = None
        if config.tls is not None and pems is not None:
            context, doubts = server_context(config.tls, pems)
            for doubt in doubts:
                log.warning("%s file=%s", doubt, self._path)
        passwords = before.passwords if before else None
        if before is None or config.users != before.config.users:
            passwords = Passwords(config.users, self._executor) if config.users else None
        bucket = before.bucket if before else None
        if before is None or config.rate_limit != before.config.rate_limit:
            limit = config.rate_limit
            bucket = Bucket(limit, time.monotonic()) if limit else None
        return WebRules(config, context, passwords, bucket)

    def _say(self, what: str, rules: WebRules) -> None:
        config = rules.config
        log.info(
            "%s: TLS %s, basic authentication %s file=%s",
            what,
            "off" if config.tls is None else "on",
            f"of {len(config.users)} users" if config.users else "off",
            self._path,
        )
        for note in config.notes:
            log.warning("%s file=%s", note, self._path)
        if config.users and config.tls is None:
            log.warning("passwords travel in clear: TLS is off file=%s", self._path)


def _stamp(path: Path) -> _Stamp:
    """What changes with the file; an error's number where it cannot be seen."""
    try:
        seen = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _is_young(stamps: tuple[_Stamp, ...]) -> bool:
    now = time.time_ns()
    return any(now - stamp[-1] < _YOUNG_NANOSECONDS for stamp in stamps)


def _check_change(old: WebConfig, new: WebConfig) -> None:
    """What needs a restart is refused."""
    mistakes = []
    if (old.tls is None) != (new.tls is None):
        mistakes.append("tls_server_config: TLS is turned on or off by a restart only")
    if old.users and not new.users:
        mistakes.append("basic_auth_users: the last user goes by a restart only")
    if old.tls and new.tls and new.tls.client_auth < old.tls.client_auth:
        mistakes.append(
            "tls_server_config.client_auth_type: less is asked for after a restart only"
        )
    if old.tls and new.tls and old.tls.client_allowed_sans and not new.tls.client_allowed_sans:
        mistakes.append(
            "tls_server_config.client_allowed_sans: every name is allowed after a restart only"
        )
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _prefixed(prefix: str, error: ConfigError) -> str:
    return "\n".join(prefix + line for line in str(error).split("\n"))
