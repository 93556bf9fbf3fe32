"""The sections of the configuration file, each with its keys, defaults and checks.

A component is given its own section. docs/configuration.md lists every key.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.config_values import ApiKeys, Hosts, Origins, is_loopback, refuse_booleans


class Section(BaseModel):
    """Base of every group: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_no_booleans_for_numbers(cls, value: object) -> object:
        refuse_booleans(value, {key: field.default for key, field in cls.model_fields.items()})
        return value


class ServerConfig(Section):
    """``[server]``: where and for whom the gateway listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    api_keys: Annotated[ApiKeys, Field(repr=False)] = ()
    standard_keys: Annotated[ApiKeys, Field(repr=False)] = ()  # class ``standard`` at most
    background_keys: Annotated[ApiKeys, Field(repr=False)] = ()  # class ``background`` only
    admin_keys: Annotated[ApiKeys, Field(repr=False)] = ()  # of operators, for /v1/admin too
    allowed_origins: Origins = ()  # exact; the gateway's own origin is always allowed
    allowed_hosts: Hosts = ()  # names clients may use; loopback names and addresses always are
    tls_cert: str | None = None
    tls_key: str | None = None
    shutdown_budget_s: float = Field(default=10.0, gt=0, le=600)

    @model_validator(mode="after")
    def _is_safe(self) -> ServerConfig:
        keys = (*self.api_keys, *self.standard_keys, *self.background_keys, *self.admin_keys)
        if len(set(keys)) < len(keys):
            raise ValueError("api_keys and the other lists of keys must have each key once")
        if not is_loopback(self.host) and not keys:
            raise ValueError(f"api_keys must be set to listen beyond loopback, on {self.host!r}")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_cert" if self.tls_cert is None else "tls_key"
            raise ValueError(f"{missing} must be set too: TLS needs a certificate and its key")
        return self


class LimitsConfig(Section):
    """``[limits]``: bounds per connection and per process."""

    max_connections: int = Field(default=1024, ge=1)
    max_streams: int = Field(default=64, ge=1)  # per connection
    max_frame_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_width: int = Field(default=8192, ge=16)
    max_height: int = Field(default=8192, ge=16)
    max_pixels: int = Field(default=33_177_600, ge=256)  # 8K UHD
    max_prompts: int = Field(default=8, ge=1)
    # Per connection, control and pieces of media; 64 streams of 30 fps fit, with their acks.
    max_messages_per_s: float = Field(default=4000.0, gt=0)
    max_outbox_bytes: int = Field(default=4 * 1024 * 1024, ge=64 * 1024)  # per connection
    max_input_bytes: int = Field(default=512 * 1024 * 1024, ge=1024 * 1024)  # per process
    max_outboxes_bytes: int = Field(default=512 * 1024 * 1024, ge=8 * 1024 * 1024)  # per process
    hello_timeout_s: float = Field(default=5.0, gt=0)
    assembly_timeout_s: float = Field(default=10.0, gt=0)
    ping_interval_s: float = Field(default=10.0, gt=0)
    pong_timeout_s: float = Field(default=20.0, gt=0)
    ack_deadline_s: float = Field(default=10.0, gt=0)
    send_timeout_s: float = Field(default=10.0, gt=0)
    tcp_user_timeout_s: float = Field(default=15.0, gt=0)
    # How long a session waits for a client whose connection was lost; 0: not at all.
    resume_window_s: float = Field(default=30.0, ge=0, le=3600)
    max_detached_sessions: int = Field(default=256, ge=1)  # that wait at once, per process
    max_detached_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)  # of their events


class StreamsConfig(Section):
    """``[streams]``: defaults of frame streams, by policy."""

    latest_credit: int = Field(default=8, ge=1)  # frames a client may have in flight
    fifo_capacity: int = Field(default=32, ge=1)
    lossless_capacity: int = Field(default=32, ge=1)
    credit_bytes: int = Field(default=8 * 1024 * 1024, ge=64 * 1024)
    latest_deadline_ms: float = Field(default=1000.0, gt=0)
    fifo_deadline_ms: float = Field(default=2000.0, gt=0)
    max_deadline_ms: float = Field(default=60_000.0, gt=0)
    max_gap: int = Field(default=16, ge=1)  # results that wait for one unanswered frame
    max_playout_delay_ms: float = Field(default=250.0, gt=0, le=5000)  # of pace playout

    @model_validator(mode="after")
    def _is_consistent(self) -> StreamsConfig:
        _check_deadline("latest_deadline_ms", self.latest_deadline_ms, self.max_deadline_ms)
        _check_deadline("fifo_deadline_ms", self.fifo_deadline_ms, self.max_deadline_ms)
        return self


def _check_deadline(key: str, deadline_ms: float, max_deadline_ms: float) -> None:
    if deadline_ms > max_deadline_ms:
        raise ValueError(
            f"{key} must be at most max_deadline_ms ({max_deadline_ms:.0f}), got {deadline_ms:.0f}"
        )


class TextConfig(Section):
    """``[text]``: prompts and their answers, over WebSocket and HTTP."""

    deadline_ms: float = Field(default=600_000.0, gt=0)  # of a prompt that names none
    max_deadline_ms: float = Field(default=3_600_000.0, gt=0)
    max_http_requests: int = Field(default=256, ge=1)  # at once, all clients together
    keep_alive_s: float = Field(default=15.0, gt=0)  # a comment on an event stream this silent

    @model_validator(mode="after")
    def _is_consistent(self) -> TextConfig:
        _check_deadline("deadline_ms", self.deadline_ms, self.max_deadline_ms)
        return self


class PacingConfig(Section):
    """``[pacing]``: when the tokens of an answer leave.

    ``websocket`` and ``sse`` are for prompts that do not say; over HTTP without ``stream`` there is
    nothing to pace.
    """

    websocket: Literal["steady", "off"] = "steady"
    sse: Literal["steady", "off"] = "off"  # mostly read by programs
    min_rate: float = Field(default=20.0, gt=0)  # tokens/s; a slower engine is followed
    max_rate: float = Field(default=50.0, gt=0, le=1000)
    lag_cap_ms: float = Field(default=600.0, ge=100, le=10_000)  # how long a token is held
    limit_streams: bool = False  # whether each stream has a bucket
    capacity: float = Field(default=50.0, gt=0)  # of it: tokens that may be faster
    fill_rate: float = Field(default=30.0, gt=0)  # and tokens/s in the long run
    tenant_capacity: float = Field(default=500.0, gt=0)  # the same for all streams of a key
    tenant_fill_rate: float = Field(default=0.0, ge=0)  # 0: no limit
    transfer_rate: float = Field(default=45.0, gt=0)  # messages/s of an answer with pace off
    burst: int = Field(default=80, ge=1)  # of them at once

    @model_validator(mode="after")
    def _is_consistent(self) -> PacingConfig:
        if self.max_rate < self.min_rate:
            text = f"must be at least min_rate ({self.min_rate:g}), got {self.max_rate:g}"
            raise ValueError(f"max_rate {text}")
        if self.lag_cap_ms <= 1e3 / self.min_rate:
            text = f"must hold more than one gap of min_rate, got {self.lag_cap_ms:g}"
            raise ValueError(f"lag_cap_ms {text}")
        return self


class LoggingConfig(Section):
    """``[logging]``: what goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["human", "json"] = "human"
