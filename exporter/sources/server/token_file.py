"""A bearer token kept in a file, so that neither command line nor configuration shows it."""

from __future__ import annotations

from pathlib import Path

from exporter.sources.server.answer import NoAnswerError

MOST_BYTES = 4096


class NoTokenError(NoAnswerError):
    """The file holds no token; the message repeats nothing of it. The server was not asked."""


def read_token(path: Path) -> str:
    """The token in a file, without the white space around it.

    Raises:
        NoTokenError: It cannot be read, or holds anything but one token.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NoTokenError(
            f"cannot read the token_file {path}: {error.strerror}; "
            "make it a file that the exporter's user can read"
        ) from None
    token = content.strip()
    # Visible ASCII only: anything else could end the header it is sent in.
    if not token or len(content) > MOST_BYTES or not all(0x21 <= byte <= 0x7E for byte in token):
        raise NoTokenError(f"cannot use the token_file {path}: it must hold the API key alone")
    return token.decode("ascii")
