"""Configuration: command line > environment (``CLAWSTREAM_SECTION__KEY``) > TOML file > defaults.

Frozen, grouped, read once, validated whole; unknown keys fail and the error names the option.
Building a value never reads the environment: only :func:`load_config` does.
docs/configuration.md lists every key with its default.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from engine.config import ModelConfig
from gateway.errors import ConfigError

ENV_PREFIX = "CLAWSTREAM_"
ENV_DELIMITER = "__"


def _split(value: object) -> object:
    """Let the environment write a list as ``a,b`` or as JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("must be a list, as a,b or as JSON") from None
    return [part.strip() for part in value.split(",") if part.strip()]


Strings = Annotated[tuple[str, ...], BeforeValidator(_split)]


def is_loopback(host: str) -> bool:
    """Whether ``host`` (a name or an address) can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Section(BaseModel):
    """Base of every group: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerConfig(Section):
    """``[server]``: where and for whom the gateway listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65535)
    api_keys: Annotated[Strings, Field(repr=False)] = ()
    allowed_origins: Strings = ()  # exact; the gateway's own origin is always allowed
    allowed_hosts: Strings = ()  # names clients may use; loopback names and addresses always are
    tls_cert: str | None = None
    tls_key: str | None = None
    shutdown_budget_s: float = Field(default=10.0, gt=0, le=600)

    @model_validator(mode="after")
    def _is_safe(self) -> ServerConfig:
        if not is_loopback(self.host) and not self.api_keys:
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
    max_messages_per_s: float = Field(default=2000.0, gt=0)  # control and media, per connection
    max_outbox_bytes: int = Field(default=4 * 1024 * 1024, ge=64 * 1024)  # per connection
    hello_timeout_s: float = Field(default=5.0, gt=0)
    assembly_timeout_s: float = Field(default=10.0, gt=0)
    ping_interval_s: float = Field(default=10.0, gt=0)
    pong_timeout_s: float = Field(default=20.0, gt=0)
    ack_deadline_s: float = Field(default=10.0, gt=0)
    send_timeout_s: float = Field(default=10.0, gt=0)
    tcp_user_timeout_s: float = Field(default=15.0, gt=0)


class StreamsConfig(Section):
    """``[streams]``: defaults of frame streams, by policy."""

    latest_credit: int = Field(default=8, ge=1)  # frames a client may have in flight
    fifo_capacity: int = Field(default=32, ge=1)
    lossless_capacity: int = Field(default=32, ge=1)
    credit_bytes: int = Field(default=8 * 1024 * 1024, ge=64 * 1024)
    latest_deadline_ms: float = Field(default=1000.0, gt=0)
    fifo_deadline_ms: float = Field(default=2000.0, gt=0)
    max_deadline_ms: float = Field(default=60_000.0, gt=0)


class InferenceConfig(Section):
    """``[inference]``: the language-model engine; read and checked, in use once it is served."""

    max_batch_size: int = Field(default=32, ge=1, le=4096)
    preempt_ratio: float = Field(default=0.3, ge=0, le=1)
    scheduler_interval: float = Field(default=50.0, gt=0)  # milliseconds
    cache_block_size: int = Field(default=16, ge=1)  # tokens
    max_seq_length: int = Field(default=4096, ge=1)  # tokens
    fused_attention: bool = True
    zero_copy_fallback: bool = True


class PacingConfig(Section):
    """``[pacing]``: token bucket of a text stream; read and checked, in use with that engine."""

    capacity: float = Field(default=50.0, gt=0)  # tokens a stream may burst
    fill_rate: float = Field(default=30.0, gt=0)  # tokens per second


class LoggingConfig(Section):
    """``[logging]``: what goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["human", "json"] = "human"


_MODEL_KEYS = tuple(field.name for field in fields(ModelConfig))


class ServedModel(Section):
    """``[models.NAME]``: one model. The keys beside ``path`` are those of ``ModelConfig``.

    ``path`` is an ONNX file with its TOML, or a catalogue name; default: NAME in the catalogue.
    """

    path: str | None = None
    serving: ModelConfig = ModelConfig()

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Move the serving keys into one value, so that ``ModelConfig`` alone defines them."""
        if not isinstance(value, Mapping) or "serving" in value:
            return value
        serving = {key: item for key, item in value.items() if key in _MODEL_KEYS}
        if isinstance(serving.get("execution_providers"), str):
            serving["execution_providers"] = _split(serving["execution_providers"])
        rest = {key: item for key, item in value.items() if key not in _MODEL_KEYS}
        return {**rest, "serving": serving}


def _by_name(value: object) -> object:
    """Accept ``models = ["a", "b"]`` beside tables."""
    names = _split(value)
    return {str(name): {} for name in names} if isinstance(names, list) else names


class GatewayConfig(Section):
    """Everything that can be set."""

    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()
    streams: StreamsConfig = StreamsConfig()
    models: Annotated[dict[str, ServedModel], BeforeValidator(_by_name)] = {
        "centerface": ServedModel()
    }
    inference: InferenceConfig = InferenceConfig()
    pacing: PacingConfig = PacingConfig()
    logging: LoggingConfig = LoggingConfig()


def load_config(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> GatewayConfig:
    """Merge file, environment and ``overrides`` (nested tables, strongest) and validate them.

    Args:
        environment: defaults to the process's.

    Raises:
        ConfigError: unreadable file, unknown key or bad value; names the option.
    """
    environment = os.environ if environment is None else environment
    tables = _read_toml(path) if path is not None else {}
    for layer in (_read_environment(environment), overrides or {}):
        tables = _merged(tables, layer)
    return parse_config(tables)


def parse_config(tables: Mapping[str, Any]) -> GatewayConfig:
    """Validate nested tables; see :func:`load_config`."""
    try:
        return GatewayConfig.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """``CLAWSTREAM_LIMITS__MAX_STREAMS=4`` becomes ``{"limits": {"max_streams": "4"}}``.

    Variables without the delimiter (``CLAWSTREAM_HOME``) belong to others.
    """
    tables: dict[str, Any] = {}
    for name, value in environment.items():
        keys = name.removeprefix(ENV_PREFIX).lower().split(ENV_DELIMITER)
        if not name.startswith(ENV_PREFIX) or len(keys) < 2:
            continue
        nested: Any = value
        for key in reversed(keys):
            nested = {key: nested}
        tables = _merged(tables, nested)
    return tables


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return result


_WORDS = {
    "greater_than_equal": "must be >= {ge:g}",
    "greater_than": "must be > {gt:g}",
    "less_than_equal": "must be <= {le:g}",
    "literal_error": "must be {expected}",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "dict_type": "must be a table",
}


def _explain(error: ValidationError) -> str:
    """The first problem as ``section.key: what is wrong, got value``."""
    first = error.errors(include_url=False)[0]
    keys = [str(key) for key in first["loc"] if key != "serving"]
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(keys)}: unknown option{_suggestion(keys)}"
    message = _WORDS.get(first["type"], first["msg"]).format(**first.get("ctx", {}))
    message = message.removeprefix("Value error, ")
    if first["loc"][-1] == "serving" or (len(keys) == 1 and first["type"] == "value_error"):
        # A check of a whole section: its text starts with the key.
        key, _, message = message.partition(" ")
        return f"{'.'.join([*keys, key])}: {message}"
    shown = "" if "api_keys" in keys else f", got {_shown(first['input'])}"
    return f"{'.'.join(keys)}: {message}{shown}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _suggestion(keys: list[str]) -> str:
    """``; did you mean …?`` when a known key of the same table is close."""
    if len(keys) == 1:
        known = list(GatewayConfig.model_fields)
    elif keys[0] == "models":
        known = ["path", *_MODEL_KEYS]
    else:
        section = GatewayConfig.model_fields[keys[0]].annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        known = list(section.model_fields)
    nearest = difflib.get_close_matches(keys[-1], known, n=1)
    return f"; did you mean {'.'.join([*keys[:-1], nearest[0]])}?" if nearest else ""
