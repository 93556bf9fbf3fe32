"""What a client is told when its session begins, or goes on."""

from __future__ import annotations

from msgspec import UNSET

from engine.base import Engine
from gateway.config_sections import LimitsConfig
from gateway.session.clock import Clock
from gateway.session.registry import SessionRegistry
from gateway.session.resume_tokens import Resumable
from gateway.stream.service_level import Level
from gateway.wire.codec import MAX_BINARY_BYTES
from gateway.wire.messages import Limits, ResumedStream, Welcome


class Greeter:
    """Makes ``welcome`` messages, each with a resume token of its own."""

    def __init__(
        self, *, engine: Engine, limits: LimitsConfig, clock: Clock, registry: SessionRegistry
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self._registry = registry

    def welcome(
        self,
        session: Resumable,
        *,
        used_token: str | None = None,
        resumed: list[ResumedStream] | None = None,
    ) -> Welcome:
        """``resumed`` says what became of each stream that the client has asked for, if it has;
        ``used_token`` is the one that it came back with."""
        models, level = self._engine.statistics().models, self._registry.tiers.pressure.level
        return Welcome(
            session=session.id,
            epoch=self._registry.epoch,
            resume_token=self._registry.tokens.issue(session, used=used_token),
            resume_window_s=self._limits.resume_window_s,
            limits=_announced(self._limits),
            models=sorted({model.model for model in models}),
            now_us=self._clock.now_us(),
            resumed=UNSET if resumed is None else resumed,
            service_level=UNSET if level is Level.NORMAL else level.label,
        )


def _announced(limits: LimitsConfig) -> Limits:
    return Limits(
        max_message_bytes=MAX_BINARY_BYTES,
        max_frame_bytes=limits.max_frame_bytes,
        max_streams=limits.max_streams,
        max_width=limits.max_width,
        max_height=limits.max_height,
        max_pixels=limits.max_pixels,
        max_prompts=limits.max_prompts,
        max_messages_per_s=limits.max_messages_per_s,
        ack_deadline_s=limits.ack_deadline_s,
    )
