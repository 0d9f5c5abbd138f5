"""The page's own files, read once: HTML, style, scripts, and the palette as a style sheet.

The browser asks again each time and is told when nothing changed; nothing is loaded from anywhere
else, and the policy would not allow it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from aiohttp import web

from exporter.palette import LOOKS, MEANINGS, Look

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FOLDER = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


class PageFiles:
    """All files by name, held in memory."""

    def __init__(self) -> None:
        files = {
            path.name: (path.read_bytes(), _TYPES[path.suffix])
            for path in sorted(_FOLDER.iterdir())
            if path.suffix in _TYPES
        }
        files["palette.css"] = palette_css().encode(), "text/css"
        self._files = {
            name: (body, kind, hashlib.sha256(body).hexdigest()[:32])
            for name, (body, kind) in files.items()
        }

    def answer(self, request: web.Request, name: str) -> web.Response:
        """A file; 304 if the browser has this one, 404 if there is none of that name."""
        if name not in self._files:
            raise web.HTTPNotFound
        body, kind, tag = self._files[name]
        headers = {**HEADERS, "ETag": f'"{tag}"'}
        if any(each.value in (tag, "*") for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


def palette_css() -> str:
    """Colors, stripes and meanings of the states as variables, for light and dark ground."""
    light = "".join(
        _variables(state, look, look.light, look.light_lines) for state, look in LOOKS.items()
    )
    dark = "".join(
        _variables(state, look, look.dark, look.dark_lines) for state, look in LOOKS.items()
    )
    meanings = "".join(f'--{state}-means:"{MEANINGS[state]}";' for state in LOOKS)
    return f":root{{{light}{meanings}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _variables(state: str, look: Look, surface: str, lines: str) -> str:
    told = f"--{state}:{surface};--{state}-lines:{lines or surface};"
    if look.stripes is None:
        return told
    stripes = look.stripes
    return (
        f"{told}--{state}-period:{stripes.period};--{state}-line:{stripes.line};"
        f"--{state}-upright:{int(stripes.upright)};"
    )
