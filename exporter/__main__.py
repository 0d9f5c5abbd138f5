"""The command, also as `python -m exporter`. Ctrl-C is one sentence from the first moment on."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 3


def main() -> int:
    """Runs the command that the arguments name and returns its exit code."""
    # No KeyboardInterrupt: Python ends itself by the signal if one passes through an `exec`, as
    # that of a dataclass, even if it is caught. A SIGINT that is ignored (nohup) stays so.
    if catches := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(_say_interrupted()))
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the configuration is not read yet
    from exporter.cli import main as run  # noqa: PLC0415  # takes most of a second

    if catches:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        return _say_interrupted()


def _say_interrupted() -> int:
    sys.stderr.write("sglang-pipeline-exporter: interrupted\n")
    if "--json" in sys.argv:
        sys.stdout.write('{"error": "interrupted"}\n')
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
