"""An exporter with a configuration file that is written anew while it runs.

with Reloadable(tmp_path, {"servers": [{"name": "kimi", "files": [...]}]}) as running:
    running.change({"servers": [...]})       # in force when it returns
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.running import PATIENCE_SECONDS, Answer, RunningExporter

Document = dict[str, Any]


def write_config(path: Path, document: Document | str) -> None:
    """Replaces the file as editors do: whole, by a rename."""
    text = document if isinstance(document, str) else str(document)  # such a repr is YAML
    written = path.with_name(path.name + ".new")
    written.write_text(text)
    written.rename(path)


class Reloadable(RunningExporter):
    """A running exporter that reloads over HTTP.

    Attributes:
        config: Its configuration file.
    """

    def __init__(
        self, folder: Path, document: Document, *options: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.config = folder / "exporter.yaml"
        write_config(self.config, document)
        super().__init__(
            ["serve", f"--config={self.config}", "--web.enable-reload", *options], folder, env
        )

    def reload(self) -> Answer:
        """POST /-/reload."""
        request = urllib.request.Request(self.url + "/-/reload", method="POST")  # noqa: S310  # our own http URL
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310  # same
                return Answer(response.status, "", response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, "", error.read().decode())

    def change(self, document: Document | str) -> None:
        """Puts another configuration in force."""
        write_config(self.config, document)
        answer = self.reload()
        assert answer.status == 200, answer
