"""What a YAML document holds → the values of known settings, and every mistake with its place."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from exporter.setting_values import WrongValueError, shown
from exporter.settings import Setting

_NOTHING_ELSEWHERE: Mapping[str, str] = {}


def read_settings(
    values: object,
    settings: Sequence[Setting],
    path: str,
    mistakes: list[str],
    elsewhere: Mapping[str, str] = _NOTHING_ELSEWHERE,
) -> dict[str, Any]:
    """The values given, read; a key with nothing behind it counts as left out.

    Args:
        values: What YAML gave.
        settings: What may stand here.
        path: Where `values` stands in the file; empty at its top.
        mistakes: What is wrong is added to it.
        elsewhere: Key → where it belongs, for keys that are often written here.
    """
    if not isinstance(values, dict):
        place = path or "the configuration"
        mistakes.append(f"{place}: {shown(values)} is not a mapping of settings to values")
        return {}
    known = {setting.key: setting for setting in settings}
    prefix = f"{path}." if path else ""
    read: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            mistakes.append(_unknown_key(key, known, prefix, elsewhere))
        elif value is not None:
            try:
                read[key] = known[key].read(value)
            except WrongValueError as error:
                mistakes += [f"{prefix}{key}{below}: {what}" for below, what in error.mistakes]
    return read


def _unknown_key(
    key: object, known: Mapping[str, Setting], prefix: str, elsewhere: Mapping[str, str]
) -> str:
    nearest = difflib.get_close_matches(str(key), known, n=1)
    if nearest:
        hint = f"did you mean {nearest[0]}?"
    elif isinstance(key, str) and key in elsewhere:
        hint = elsewhere[key]
    else:
        hint = f"known here: {', '.join(known)}"
    place = key if isinstance(key, str) and key.isprintable() and len(key) <= 64 else shown(key)
    return f"{prefix}{place}: unknown setting; {hint}"
