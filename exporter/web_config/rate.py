"""How often may be asked: a bucket that refills with time."""

from __future__ import annotations

from exporter.web_config.document import RateLimit


class Bucket:
    """Holds so many requests as may come at once; each takes one out."""

    def __init__(self, limit: RateLimit, now: float) -> None:
        """Full; `now` is on the clock of all later calls, in seconds."""
        self.limit = limit
        self._held = float(limit.burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Whether a request may be answered now."""
        gained = (now - self._at) / self.limit.interval_seconds
        self._held = min(float(self.limit.burst), self._held + gained)
        self._at = now
        if self._held < 1.0:
            return False
        self._held -= 1.0
        return True
