"""What a stream of frames asks for, each time it is opened."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.wire.messages import StreamOptions

POLICIES = ("latest", "fifo", "lossless")
PACES = ("off", "playout")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """Raises ValueError for options that no server takes; ``fps`` is the client's own limit."""

    model: str
    options: StreamOptions
    fps: float | None = None

    def __post_init__(self) -> None:
        policy = self.options.policy
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
        pace = self.options.pace
        if pace is not None and pace not in PACES:
            raise ValueError(f"pace must be one of {', '.join(PACES)}, got {pace!r}")
        if pace == "playout" and policy == "lossless":
            raise ValueError("pace playout drops late results: it does not go with policy lossless")
        if self.fps is not None and not self.fps > 0.0:
            raise ValueError(f"fps must be above 0, got {self.fps}")
