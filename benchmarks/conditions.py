"""How a judge behaves that is not always there: its pace, its quota and its failures."""

from __future__ import annotations

from dataclasses import dataclass

from truth import Noise, chance

FAULTS = ("internal", "unavailable", "reset", "cut", "hang", "malformed")
"""What may happen to a request, each by the field of this name."""


@dataclass(frozen=True)
class Conditions:
    """What requests meet. All luck is a hash of what is asked and of how often it was asked before, the same for every contender."""

    latency_ms: float = 50.0
    jitter_ms: float = 0.0
    """How much more or less an answer may take."""
    most_in_flight: int = 0
    """More than that are refused with status 429; 0: any number is served."""
    rpm: float = 0.0
    """Requests a minute; what is more is refused with status 429, which says when to come back. 0: no limit."""
    burst: float = 20.0
    """How many requests may come at once within the limit."""
    internal: float = 0.0
    """The share of requests that end with status 500."""
    unavailable: float = 0.0
    """With status 503."""
    reset: float = 0.0
    """With a connection that breaks before the answer."""
    cut: float = 0.0
    """With one that breaks within the answer."""
    hang: float = 0.0
    """With no answer until `hang_s`, when the connection breaks."""
    hang_s: float = 3600.0
    malformed: float = 0.0
    """With an answer that is not what was asked for."""
    noise: float = 0.0
    """The share of votes that are wrong."""
    seed: int = 1

    def fault(self, subject: str, number: int) -> str:
        """Return what happens to the request of this number about a subject; ``""`` for nothing."""
        luck = chance("fault", self.seed, subject, number)
        for name in FAULTS:
            luck -= getattr(self, name)
            if luck < 0:
                return name
        return ""

    def latency_s(self, subject: str, number: int) -> float:
        """Return how long the request of this number about a subject takes."""
        swing = self.jitter_ms and (chance("latency", self.seed, subject, number) * 2 - 1) * self.jitter_ms
        return max(0.0, self.latency_ms + swing) / 1000

    @property
    def dissent(self) -> Noise:
        """How often votes are wrong."""
        return Noise(self.noise, self.seed)


class Quota:
    """A bucket of requests that fills at a constant pace."""

    def __init__(self, conditions: Conditions, now: float) -> None:
        self._pace = conditions.rpm / 60
        self._burst = self._left = conditions.burst
        self._checked = now

    def wait(self, now: float) -> float:
        """Take a request out; return 0, or in how many seconds there will be one again."""
        if not self._pace:
            return 0.0
        self._left = min(self._burst, self._left + (now - self._checked) * self._pace)
        self._checked = now
        if self._left < 1:
            return (1 - self._left) / self._pace
        self._left -= 1
        return 0.0
