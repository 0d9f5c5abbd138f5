"""Exporter health: is everything read, without loss and without lag, and at what cost."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.frame import Row, dashboard
from grafana.limits import limit
from grafana.panels import stat_panel, status_history, time_series
from grafana.queries import EXPORTER, RATE_INTERVAL, TARGET
from grafana.tables import table_panel

UID: Final = "sglang-pipeline-exporter"


def build() -> Dashboard:
    """The dashboard as Grafana's own types."""
    return dashboard(
        UID,
        "SGLang / Exporter health",
        "Is everything read, without loss and without lag, and what does it cost?",
        [],
        [
            Row(
                "Is everything read",
                [
                    (_targets(), 8, 7),
                    (_sources(), 8, 7),
                    (_reload(), 8, 7),
                    (_what_shows_more(), 12, 7),
                    (_builds(), 12, 7),
                ],
            ),
            Row(
                "The log",
                [
                    (_lines(), 8, 7),
                    (_lag(), 8, 7),
                    (_rejected(), 8, 7),
                    (_lost(), 8, 7),
                    (_doubtful(), 8, 7),
                    (_silence(), 8, 7),
                ],
            ),
            Row(
                "The driver",
                [(_calls(), 8, 7), (_errors(), 8, 7), (_samples(), 8, 7)],
            ),
            Row(
                "The process",
                [(_processor(), 8, 7), (_memory(), 8, 7), (_files(), 8, 7)],
            ),
        ],
    )


def _per_instance(key: str) -> str:
    return f"sum by (instance) ({EXPORTER.rate(key)})"


# --- is everything read ------------------------------------------------------------------------


def _targets() -> Panel:
    return status_history(
        Figure(
            title="Targets that answer",
            about=About(
                "Does Prometheus reach each target? 1 while it does.",
                "1 everywhere.",
                "the host, its firewall or the exporter is down: every figure of that host is "
                "missing, and its alerts are silent.",
            ),
            queries=[Query(f"min by (job, instance) (up{{{TARGET}}})", "{{instance}} {{job}}")],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("TargetDown"),
            alerts=("TargetDown",),
        ),
        columns=60,
    )


def _sources() -> Panel:
    up = EXPORTER.now(catalog.SOURCE_UP)
    return status_history(
        Figure(
            title="Sources that are read",
            about=About(
                "Is each source read? 1 while it is, 0 while it cannot be.",
                "1 everywhere.",
                "the exporter's log, its page at / and /-/ready name the remedy.",
            ),
            queries=[Query(f"min by (instance, source) ({up})", "{{instance}} {{source}}")],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("ExporterSourceDown"),
            alerts=("ExporterSourceDown",),
        ),
        columns=60,
    )


def _reload() -> Panel:
    loaded = EXPORTER.now(catalog.CONFIG_LAST_RELOAD_SUCCESSFUL)
    return stat_panel(
        Figure(
            title="Newest configuration in force",
            about=About(
                "Is the configuration in force the newest one? 1 if it is, on every exporter.",
                "1.",
                "check-config FILE names every mistake; the one before it stays in force.",
            ),
            queries=[Query(f"min({loaded})", instant=True)],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
        ),
        sparkline=False,
    )


def _what_shows_more() -> Panel:
    return table_panel(
        Figure(
            title="What would show more",
            about=About(
                "Which settings of SGLang or of the host would make the figures sharper? Each row "
                "is one that is not in force.",
                "no row.",
                "set it at the next restart of the server; the README says what each brings.",
            ),
            queries=[Query(EXPORTER.now(catalog.RECOMMENDATION), instant=True)],
            unit="string",
        ),
        key="setting",
        columns={"setting": "Setting to switch on", "instance": "Instance"},
    )


def _builds() -> Panel:
    return table_panel(
        Figure(
            title="Versions",
            about=About(
                "Which exporter runs where?",
                "the same version everywhere.",
                "update the old ones: a pipeline over hosts is joined from all.",
            ),
            queries=[Query(EXPORTER.now(catalog.BUILD_INFO), instant=True)],
            unit="string",
        ),
        key="instance",
        columns={"instance": "Instance", "version": "Exporter", "python_version": "Python"},
    )


# --- the log -----------------------------------------------------------------------------------


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


# --- the driver --------------------------------------------------------------------------------


def _calls() -> Panel:
    spent, calls = (EXPORTER.rate(catalog.NVML_CALL_SECONDS, part) for part in ("_sum", "_count"))
    return time_series(
        Figure(
            title="Time of a call to the driver",
            about=About(
                "Does the driver answer quickly? Mean time of a call, by function.",
                "milliseconds.",
                "seconds: the driver hangs, often before a card is lost; samples are missed "
                "meanwhile and counted so.",
            ),
            queries=[Query(f"sum by (call) ({spent}) / (sum by (call) ({calls}) > 0)", "{{call}}")],
            unit="s",
            minimum=0,
        )
    )


def _errors() -> Panel:
    return time_series(
        Figure(
            title="Calls of the driver that failed",
            about=About(
                "Which calls fail, per second? NOT_SUPPORTED counts once a probe.",
                "none after the start.",
                "GPU_IS_LOST: see the GPU's page. Others: NVML's manual names each code.",
            ),
            queries=[
                Query(
                    f"sum by (call, code) ({EXPORTER.rate(catalog.NVML_ERRORS)})",
                    "{{call}} {{code}}",
                )
            ],
            unit="short",
            minimum=0,
        )
    )


def _samples() -> Panel:
    return time_series(
        Figure(
            title="Samples read from the driver",
            about=About(
                "How finely are the GPUs seen? Samples per second by signal, over all GPUs.",
                "constant; on an H200 5 a GPU for utilization and 50 for power.",
                "a signal without samples is not supported by the card, or the driver hangs.",
            ),
            queries=[Query(f"sum by (signal) ({EXPORTER.rate(catalog.SAMPLES)})", "{{signal}}")],
            unit="short",
            minimum=0,
            alerts=("SamplesMissed",),
        )
    )


# --- the process -------------------------------------------------------------------------------


def _processor() -> Panel:
    spent = f"rate(process_cpu_seconds_total{{{TARGET}}}[{RATE_INTERVAL}])"
    return _of_process(
        "Processor time",
        f"sum by (instance) ({spent})",
        "percentunit",
        About(
            "What does the exporter cost? Share of one core.",
            "a few percent.",
            "near 100 %: too many lines a second; a larger --decode-log-interval helps.",
        ),
    )


def _memory() -> Panel:
    return _of_process(
        "Memory",
        f"sum by (instance) (process_resident_memory_bytes{{{TARGET}}})",
        "bytes",
        About(
            "How much memory does it hold?",
            "constant, below 150 MB.",
            "growth without end is a fault: please report it.",
        ),
    )


def _files() -> Panel:
    return _of_process(
        "Open files",
        f"sum by (instance) (process_open_fds{{{TARGET}}})",
        "short",
        About(
            "Does it keep files open that it no longer needs?",
            "constant; journals that rotate come and go.",
            "growth without end is a fault: please report it.",
        ),
    )


def _of_process(title: str, expression: str, unit: str, about: About) -> Panel:
    return time_series(
        Figure(
            title=title,
            about=about,
            queries=[Query(expression, "{{instance}}")],
            unit=unit,
            minimum=0,
            colors={".": palette.BEST},
        )
    )
