"""An outcome → the whole page as text. Pure: the same outcome gives the same page.

The template escapes all that is put into it; the page allows itself its own style sheet and nothing
else (no script, no image, no request), so that a hostile name could do nothing even unescaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from exporter import __version__
from exporter.comparison.compared import Comparison
from exporter.diagnose.html_report import sections
from exporter.diagnose.html_report.command import without_user
from exporter.diagnose.html_report.comparison_section import comparison_section
from exporter.diagnose.html_report.drawn_pictures import drawings
from exporter.diagnose.html_report.experiment_section import experiment_section
from exporter.diagnose.html_report.texts import instant
from exporter.diagnose.outcome import Outcome
from exporter.diagnosis.advice import advice
from exporter.diagnosis.findings import Evidence, Verdict
from exporter.diagnosis.picture import pictures
from exporter.diagnosis.wording import gain_text, sentence
from exporter.load.report import troubles
from exporter.palette import LOOKS, MEANINGS

MOST_TEXT = 400
"""Characters of one text from outside that are shown."""

_HERE = Path(__file__).parent
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
"""Controls, and what turns the direction of text around: a name could disguise what follows it."""


def page(
    outcome: Outcome,
    command: str,
    *,
    comparison: Comparison | None = None,
    made_at: float | None = None,
) -> str:
    """The report; `command` repeats it, `made_at` is when it was made.

    An experiment and a comparison with a baseline stand beside the diagnosis.

    A verdict that cannot be told has its page too: it says what is missing.
    """
    diagnosis = outcome.diagnosis
    figures = diagnosis.figures
    shown = pictures(outcome.watch, outcome.pipeline, figures)
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = _environment().get_template("page.html.j2")
    return template.render(
        diagnosis=diagnosis,
        figures=figures,
        tone=_TONES.get(diagnosis.verdict, "fault"),
        sentence=_together(sentence(diagnosis)),
        gain=_together(gain_text(diagnosis)),
        advice=advice(diagnosis),
        supporting=[_evidence(each) for each in diagnosis.evidence if each.supports],
        opposing=[_evidence(each) for each in diagnosis.evidence if not each.supports],
        shown=shown,
        drawings=list(drawings(shown, figures)),
        experiment=experiment_section(outcome, shown),
        comparison=None if comparison is None else comparison_section(comparison),
        log_troubles=[without_user(each) for each in outcome.troubles],
        looks=LOOKS,
        meanings=MEANINGS,
        key_figures=list(sections.key_figures(figures)),
        stages=sections.stage_lines(outcome),
        slot_bars=sections.slot_bars(figures),
        loads=sections.load_lines(outcome),
        troubles=troubles(outcome.points),
        facts=sections.server_facts(figures),
        command=command,
        version=__version__,
        made_at=None if made_at is None else instant(made_at),
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'",
    )


def _together(text: str) -> str:
    """A number and its percent sign stay on one line."""
    return text.replace(" %", "\u00a0%")


_CAPITALS = {"gpu": "GPU", "kv": "KV", "sm": "SM", "dram": "DRAM"}
_TONES = {Verdict.HEALTHY: "healthy", Verdict.CANNOT_TELL: "open"}


def _evidence(evidence: Evidence) -> tuple[str, str, str, str]:
    value = evidence.value
    shown = "?" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return _words(evidence.quantity), shown, evidence.expected, evidence.source


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["words"] = _words
    environment.filters["cut"] = _cut
    environment.filters["together"] = _together
    return environment


def _words(name: str) -> str:
    """A name of ours (`gpu_fault`) as words."""
    return " ".join(_CAPITALS.get(word, word) for word in name.split("_"))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + " …"


def _shown(value: object) -> object:
    """What is put into the page: text without characters that cannot be seen."""
    return _INVISIBLE.sub("\ufffd", value) if type(value) is str else value


def _style() -> str:
    """The style sheet, with the palette as its variables."""
    light = "".join(
        f"--{state}:{look.light};--{state}-lines:{look.light_lines or look.light};"
        for state, look in LOOKS.items()
    )
    dark = "".join(
        f"--{state}:{look.dark};--{state}-lines:{look.dark_lines or look.dark};"
        for state, look in LOOKS.items()
    )
    rules = (_HERE / "page.css").read_text(encoding="utf-8")
    return (
        f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{{light}}}}}\n{rules}"
    )
