"""What a client asks for when it comes back, and what it is told then."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.client.attached import AttachedStream, RecoverableStream
from gateway.wire.messages import ResumedStream, ResumeRequest, ResumeStream, Welcome

ATTEMPTS_PER_WINDOW = 8  # at least so many try to resume, if they fail quickly


def resume_request(welcome: Welcome, streams: Mapping[AttachedStream, int]) -> ResumeRequest:
    """Asks for the session of ``welcome`` and its streams that are suspended: those with an id.

    Also without a stream: what the server keeps of the others is then given up at once.
    """
    return ResumeRequest(
        session=welcome.session,
        token=welcome.resume_token,
        streams=[
            ResumeStream(stream=number, last_seq=stream.last_seq)
            for stream, number in streams.items()
            if number >= 0 and isinstance(stream, RecoverableStream)
        ],
    )


def recovered(left: Welcome | None, welcome: Welcome) -> dict[int, ResumedStream]:
    """The streams of the session that was left which go on in the new one, by their id."""
    if left is None or left.session != welcome.session:
        return {}
    entries = welcome.resumed if isinstance(welcome.resumed, list) else []
    return {entry.stream: entry for entry in entries if entry.recovered}
