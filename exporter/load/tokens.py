"""The API keys of the server, from a file or the environment: never from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from exporter.load.failures import LoadError
from exporter.sources.server.answer import NoAnswerError
from exporter.sources.server.token_file import read_token

API_KEY_VARIABLE = "SGLANG_API_KEY"
ADMIN_KEY_VARIABLE = "SGLANG_ADMIN_API_KEY"
"""A server started with `--admin-api-key` takes this one alone for its live settings."""


def find_token(
    token_file: Path | None, environment: Mapping[str, str], variable: str = API_KEY_VARIABLE
) -> str | None:
    """The key in the file or else in the environment; `None`: there is none.

    Raises:
        LoadError: There is one, but it cannot be used; the message repeats nothing of it.
    """
    if token_file is not None:
        try:
            return read_token(token_file)
        except NoAnswerError as error:
            raise LoadError(str(error)) from None
    token = environment.get(variable, "").strip()
    # Visible ASCII only: anything else could end the header it is sent in.
    if not all("!" <= letter <= "~" for letter in token):
        raise LoadError(f"cannot use the environment variable {variable}: it is no API key")
    return token or None
