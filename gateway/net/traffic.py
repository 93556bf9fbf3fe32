"""What connections have carried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Messages and bytes of one connection, or of all that are over; payloads only.

    TCP segments with data that were sent, and those sent again, as of the last look at them.
    """

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    segments_out: int = 0
    segments_again: int = 0

    def add(self, other: Traffic) -> None:
        self.messages_in += other.messages_in
        self.messages_out += other.messages_out
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.segments_out += other.segments_out
        self.segments_again += other.segments_again
