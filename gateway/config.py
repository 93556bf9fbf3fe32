"""Configuration: command line > environment (``CLAWSTREAM_…__…``) > TOML file > defaults.

Frozen, grouped, read once, validated whole; unknown keys fail and the error names the option.
Names are the field's own: docs/configuration.md lists every key with its default.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every group: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerConfig(Section):
    """``[server]``: where and for whom the gateway listens."""

    host: str = "127.0.0.1"
    port: int = Field(8400, ge=0, le=65535)
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()  # exact; the gateway's own origin is always allowed
    tls_cert: str | None = None
    tls_key: str | None = None
    shutdown_budget_s: float = Field(10.0, gt=0, le=600)


class LimitsConfig(Section):
    """``[limits]``: bounds per connection and per process."""

    max_connections: int = Field(1024, ge=1)
    max_streams: int = Field(64, ge=1)  # per connection
    max_frame_bytes: int = Field(4 * 1024 * 1024, ge=1024)
    max_width: int = Field(8192, ge=16)
    max_height: int = Field(8192, ge=16)
    max_pixels: int = Field(33_177_600, ge=256)  # 8K UHD
    max_prompts: int = Field(8, ge=1)
    max_messages_per_s: float = Field(2000.0, gt=0)  # control and media, per connection
    max_outbox_bytes: int = Field(4 * 1024 * 1024, ge=64 * 1024)  # per connection
    hello_timeout_s: float = Field(5.0, gt=0)
    assembly_timeout_s: float = Field(10.0, gt=0)
    ping_interval_s: float = Field(10.0, gt=0)
    pong_timeout_s: float = Field(20.0, gt=0)
    ack_deadline_s: float = Field(10.0, gt=0)
    send_timeout_s: float = Field(10.0, gt=0)
    tcp_user_timeout_s: float = Field(15.0, gt=0)


class StreamsConfig(Section):
    """``[streams]``: defaults of frame streams, by policy."""

    latest_credit: int = Field(8, ge=1)  # frames a client may have in flight
    fifo_capacity: int = Field(32, ge=1)
    lossless_capacity: int = Field(32, ge=1)
    credit_bytes: int = Field(8 * 1024 * 1024, ge=64 * 1024)
    latest_deadline_ms: float = Field(1000.0, gt=0)
    fifo_deadline_ms: float = Field(2000.0, gt=0)
    max_deadline_ms: float = Field(60_000.0, gt=0)
