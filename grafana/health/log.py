"""What is read of the log, how late, and what is refused or lost."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana.figures import NONE_SEEN, About, Figure, Query
from grafana.limits import limit
from grafana.panels import time_series
from grafana.queries import EXPORTER, RATE_INTERVAL


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_lines(), 8, 7),
        (_lag(), 8, 7),
        (_rejected(), 8, 7),
        (_lost(), 8, 7),
        (_doubtful(), 8, 7),
        (_silence(), 8, 7),
        (_crashes(), 24, 6),
    ]


def _per_instance(key: str) -> str:
    return f"sum by (instance) ({EXPORTER.rate(key)})"


def _crashes() -> Panel:
    return time_series(
        Figure(
            title="Unexpected failures",
            about=About(
                "How often per second did a source, or a task of the exporter's own, meet an exception "
                "that nobody foresaw? It goes on, or is begun again.",
                "0.",
                "a bug: please report the lines of the exporter's log with its stack.",
            ),
            queries=[
                Query(
                    f"sum by (instance, source) ({EXPORTER.rate(catalog.CRASHES)})",
                    "{{instance}} {{source}}",
                )
            ],
            unit="short",
            minimum=0,
        )
    )


def _lines() -> Panel:
    return time_series(
        Figure(
            title="Log entries read",
            about=About(
                "How much is read from the log per second, whatever it holds?",
                "what the server prints; 0 while it is idle.",
                "0 under load: the unit's name is wrong, or the log goes elsewhere.",
            ),
            queries=[Query(_per_instance(catalog.JOURNAL_LINES), "{{instance}}")],
            unit="short",
            minimum=0,
        )
    )


def _lag() -> Panel:
    return time_series(
        Figure(
            title="Lag behind the log",
            about=About(
                "How old was the newest entry when it was read?",
                "below a second.",
                "the exporter gets too little processor time, or the journal's disk is slow.",
            ),
            queries=[
                Query(
                    f"max by (instance) ({EXPORTER.now(catalog.JOURNAL_LAG_SECONDS)})",
                    "{{instance}}",
                )
            ],
            unit="s",
            minimum=0,
            thresholds=limit("JournalLagging"),
            alerts=("JournalLagging",),
        )
    )


def _rejected() -> Panel:
    rejected = EXPORTER.rate(catalog.REJECTED_LINES)
    return time_series(
        Figure(
            title="Lines refused, by reason",
            about=About(
                "How many lines look like SGLang's and are refused, per second? They change no "
                "other series.",
                "none, or a few from prompts that quote a log.",
                "many: a new format of SGLang, a pipe that hides the processes, or forged lines; "
                "docs/security.md names each reason.",
            ),
            queries=[Query(f"sum by (reason) ({rejected})", "{{reason}}")],
            unit="short",
            no_data=NONE_SEEN,
            minimum=0,
            alerts=("LinesRejected",),
        )
    )


def _lost() -> Panel:
    suppressed = EXPORTER.select(catalog.JOURNAL_SUPPRESSED_MESSAGES)
    gaps = EXPORTER.select(catalog.JOURNAL_GAPS)
    return time_series(
        Figure(
            title="Lines lost before they were read",
            about=About(
                "Did lines get lost? Messages that journald says it dropped by its rate limit, and "
                "gaps: a vanished cursor, a corrupt file.",
                "0.",
                "LogRateLimitIntervalSec=0 in the server's unit; a larger SystemMaxUse for gaps.",
            ),
            queries=[
                Query(
                    f"sum by (instance) (increase({suppressed}[{RATE_INTERVAL}]))",
                    "dropped by journald, {{instance}}",
                ),
                Query(
                    f"sum by (instance) (increase({gaps}[{RATE_INTERVAL}]))", "gaps, {{instance}}"
                ),
            ],
            unit="short",
            minimum=0,
            thresholds=limit("JournalLosingLines"),
            alerts=("JournalLosingLines",),
        )
    )


def _doubtful() -> Panel:
    unverified = EXPORTER.rate(catalog.UNVERIFIED_LINES)
    unknown = EXPORTER.rate(catalog.UNKNOWN_FIELDS)
    return time_series(
        Figure(
            title="Lines with a doubt",
            about=About(
                "How far can the log be trusted? Batch lines per second whose process could not be "
                "known, and fields of batch lines that this version does not know.",
                "0 with the journal of a unit; files, containers and pipes are never verified.",
                "unknown fields: SGLang is newer than the exporter; nothing else is lost.",
            ),
            queries=[
                Query(f"sum by (source) ({unverified})", "unverified, {{source}}"),
                Query(f"sum({unknown})", "unknown fields"),
            ],
            unit="short",
            minimum=0,
        )
    )


def _silence() -> Panel:
    newest = EXPORTER.now(catalog.STAGE_LAST_BATCH_TIMESTAMP)
    return time_series(
        Figure(
            title="Time since the newest batch line",
            about=About(
                "How long has each stage printed nothing? Longest silence of the stages of each "
                "server, on each exporter.",
                "seconds under load; an idle server prints nothing.",
                "one stage silent while others print: its lines are refused or read elsewhere.",
            ),
            queries=[
                Query(f"time() - min by (server, instance) ({newest})", "{{server}} {{instance}}")
            ],
            unit="s",
            minimum=0,
            alerts=("StageSilent",),
        )
    )
