"""Reads the options of a stream of frames: every value is checked before the stream exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from engine.types import LaneSpec, Policy, Priority
from gateway.config_sections import StreamsConfig
from gateway.errors import ProblemKind, RequestProblem
from gateway.wire.messages import Open, StreamKind, StreamOptions
from gateway.wire.picture import PictureCodec

ANNOTATIONS = ("boxes", "blur")
CHAT = "chat"  # the kind of language models, in manifests
TEXT_KINDS = frozenset({CHAT})
PACE_OFF, PACE_PLAYOUT = "off", "playout"
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
MAX_FPS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream was opened with; ``annotation`` is the pipeline's option JSON.

    ``max_gap`` is the sequencer's; ``max_playout_delay_s`` is None when results leave at once.
    """

    id: int
    kind: StreamKind
    lane: LaneSpec
    deadline_s: float | None
    credit_frames: int
    credit_bytes: int
    codec: PictureCodec | None
    max_fps: float | None
    annotation: bytes
    max_gap: int | None = None
    max_playout_delay_s: float | None = None

    @property
    def is_lossless(self) -> bool:
        return self.lane.policy is Policy.LOSSLESS


def read_settings(message: Open, config: StreamsConfig) -> StreamSettings:
    """Raises RequestProblem(UNSUPPORTED_OPTION) and names the option."""
    options = message.options
    _check_kind(message.kind, options)
    _check_rates(options)
    _check_pace(message.kind, options)
    policy = Policy(one_of("policy", options.policy, [member.value for member in Policy]))
    priority = one_of("priority", options.priority, [member.value for member in Priority])
    capacity = {
        Policy.LATEST: 1,  # the newest frame is the only one worth a place
        Policy.FIFO: config.fifo_capacity,
        Policy.LOSSLESS: config.lossless_capacity,
    }[policy]
    credit_frames = config.latest_credit if policy is Policy.LATEST else capacity
    playout_delay_s = config.max_playout_delay_ms / 1e3
    return StreamSettings(
        id=message.stream,
        kind=message.kind,
        lane=LaneSpec(
            model=message.model,
            policy=policy,
            capacity=capacity,
            weight=options.weight,
            priority=Priority(priority),
            version=options.version,
        ),
        deadline_s=_deadline_s(policy, options, config),
        credit_frames=credit_frames,
        credit_bytes=config.credit_bytes,
        codec=None if options.codec is None else PictureCodec(options.codec),
        max_fps=options.max_fps,
        annotation=_annotation(options.annotate),
        max_gap=None if policy is Policy.LOSSLESS else _max_gap(config, credit_frames),
        max_playout_delay_s=playout_delay_s if options.pace == PACE_PLAYOUT else None,
    )


def check_model(kind: StreamKind, model: str, kinds: Mapping[str, str]) -> None:
    """Refuse a stream that the model, of a known kind in ``kinds``, is not made for."""
    known = kinds.get(model)
    if not known:
        return  # the engine knows better
    if (kind is StreamKind.TOKENS) != (known in TEXT_KINDS):
        raise unsupported(f"kind: {model} is a model of kind {known}, not for {kind.value}")


def _check_kind(kind: StreamKind, options: StreamOptions) -> None:
    for name, value, known in (
        ("codec", options.codec, [member.value for member in PictureCodec]),
        ("annotate", options.annotate, ANNOTATIONS),
    ):
        if value is None:
            continue
        if kind is not StreamKind.FRAMES:
            raise unsupported(f"{name} is for kind frames")
        one_of(name, value, known)
    if options.timing:
        raise unsupported("timing is for kind tokens: results always have theirs")


def _check_rates(options: StreamOptions) -> None:
    check_weight(options.weight)
    if options.max_fps is not None and not 0 < options.max_fps <= MAX_FPS:
        raise unsupported(f"max_fps must be above 0 and at most {MAX_FPS}")
    if options.max_fps is not None and options.policy == Policy.LOSSLESS.value:
        raise unsupported("max_fps drops frames: it does not go with policy lossless")


def _check_pace(kind: StreamKind, options: StreamOptions) -> None:
    if options.pace is None:
        return
    one_of("pace", options.pace, [PACE_OFF, PACE_PLAYOUT])
    if options.pace != PACE_PLAYOUT:
        return
    if kind is not StreamKind.FRAMES:
        raise unsupported("pace: only pictures are shown")
    if options.policy == Policy.LOSSLESS.value:
        raise unsupported("pace playout drops late results: it does not go with policy lossless")


def _max_gap(config: StreamsConfig, credit_frames: int) -> int:
    """Held results behind one frame; with half of the credit held, the camera is about to stop."""
    return max(1, min(config.max_gap, credit_frames // 2))


def _deadline_s(policy: Policy, options: StreamOptions, config: StreamsConfig) -> float | None:
    if options.deadline_ms is not None:
        if not 0 < options.deadline_ms <= config.max_deadline_ms:
            raise unsupported(f"deadline_ms must be above 0, at most {config.max_deadline_ms:g}")
        return options.deadline_ms / 1e3
    if policy is Policy.LOSSLESS:
        return None
    default_ms = config.latest_deadline_ms if policy is Policy.LATEST else config.fifo_deadline_ms
    return default_ms / 1e3


def _annotation(annotate: str | None) -> bytes:
    return b"" if annotate is None else msgspec.json.encode({"annotate": annotate})


def check_weight(weight: float) -> None:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise unsupported(f"weight must be in {MIN_WEIGHT}..{MAX_WEIGHT}")


def one_of(name: str, value: str, known: list[str] | tuple[str, ...]) -> str:
    if value not in known:
        raise unsupported(f"{name} must be one of {', '.join(known)}")
    return value


def unsupported(detail: str) -> RequestProblem:
    return RequestProblem(ProblemKind.UNSUPPORTED_OPTION, detail)
