"""The file a report goes to: tried before anything is measured, whole or not there at all."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from exporter.config import ConfigError

log = logging.getLogger(__name__)


@contextlib.contextmanager
def report_at(path: Path | None) -> Iterator[Callable[[str], None] | None]:
    """Yields what writes the report's text; `None`: there is to be none.

    The text grows as `PATH.partial` and takes its name when it is on the disk. Something that is
    no regular file (a pipe, /dev/stdout) is written directly.

    A disk that fills up meanwhile is logged: the diagnosis does not end with its report.

    Raises:
        ConfigError: The file cannot be created.
    """
    if path is None:
        yield None
        return
    in_place = path.exists() and not path.is_file()
    growing = path if in_place else path.with_name(path.name + ".partial")
    try:
        file = growing.open("wb")
    except OSError as error:
        raise _cannot_write(path, error) from error

    def write(text: str) -> None:
        try:
            # A command line may hold bytes that are no text.
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            if not in_place:
                os.fsync(file.fileno())
                growing.replace(path)
        except OSError as error:  # what was measured is printed all the same
            log.error("%s", _cannot_write(path, error))  # noqa: TRY400  # the remedy counts, not the stack
        else:
            log.info("the report is in %s", path)

    with file:
        try:
            yield write
        finally:
            if not in_place:
                growing.unlink(missing_ok=True)


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot write the report {path}: {error.strerror}; name a file in a folder that exists "
        "and may be written, with --html"
    )
