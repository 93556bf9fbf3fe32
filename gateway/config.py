"""Configuration: command line > environment (``CLAWSTREAM_SECTION__KEY``) > TOML file > defaults.

Frozen, grouped, read once, validated whole; unknown keys fail and the error names the option.
Building a value never reads the environment: only :func:`load_config` does.
docs/configuration.md lists every key with its default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from engine.config import LlmConfig, ModelConfig, UpstreamConfig
from engine.did_you_mean import did_you_mean
from gateway.config_sections import (
    LimitsConfig,
    LoggingConfig,
    PacingConfig,
    Section,
    ServerConfig,
    StreamsConfig,
    TextConfig,
)
from gateway.config_values import refuse_booleans, split_list
from gateway.errors import ConfigError

ENV_PREFIX = "CLAWSTREAM_"
ENV_DELIMITER = "__"
MAX_WORKERS = 64  # per model: each is a process with a copy of it
_MODEL_DEFAULTS = {field.name: field.default for field in fields(ModelConfig)}
_INFERENCE_DEFAULTS = {field.name: field.default for field in fields(LlmConfig)}
_UPSTREAM_DEFAULTS = {field.name: field.default for field in fields(UpstreamConfig)}


def _only_inference_keys(value: object) -> object:
    """``[inference]`` is ``LlmConfig`` itself, which pydantic would let have unknown keys."""
    _check_table(value, _INFERENCE_DEFAULTS, "inference")
    if isinstance(value, Mapping) and "content_filter" in value:
        return {**value, "content_filter": split_list(value["content_filter"])}
    return value


def _only_upstream_keys(value: object) -> object:
    _check_table(value, _UPSTREAM_DEFAULTS, "upstream")
    return value


def _check_table(table: object, defaults: Mapping[str, object], name: str) -> None:
    if isinstance(table, Mapping):
        for key in table:
            if key not in defaults:
                hint = did_you_mean(key, defaults, within=f"{name}.")
                raise ValueError(f"{key} unknown option{hint}")
    refuse_booleans(table, defaults)


class ServedModel(Section):
    """``[models.NAME]``: one model. The keys beside ``path`` are those of ``ModelConfig``.

    ``path`` is an ONNX file with its TOML, or a catalogue name; default: NAME in the catalogue.
    A language model has no other key: it is served as ``[inference]`` says. ``upstream`` is a
    language model that another server runs, and has no other key beside it.
    """

    path: str | None = None
    upstream: Annotated[UpstreamConfig | None, BeforeValidator(_only_upstream_keys)] = None
    serving: ModelConfig = ModelConfig()

    @model_validator(mode="after")
    def _is_one_kind(self) -> ServedModel:
        if self.upstream is not None and (self.path, self.serving) != (None, ModelConfig()):
            raise ValueError("upstream takes the place of all other options")
        return self

    @model_validator(mode="after")
    def _is_bounded(self) -> ServedModel:
        for key in ("workers", "max_workers"):
            if (count := getattr(self.serving, key)) > MAX_WORKERS:
                raise ValueError(f"{key} must be <= {MAX_WORKERS}, got {count}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Move the serving keys into one value, so that ``ModelConfig`` alone defines them."""
        if not isinstance(value, Mapping) or "serving" in value:
            return value
        refuse_booleans(value, _MODEL_DEFAULTS)
        serving = {key: item for key, item in value.items() if key in _MODEL_DEFAULTS}
        for key in ("execution_providers", "versions", "variants"):
            if isinstance(serving.get(key), str):
                serving[key] = split_list(serving[key])
        if isinstance(serving.get("versions"), list):
            serving["versions"] = [str(version) for version in serving["versions"]]
        rest = {key: item for key, item in value.items() if key not in _MODEL_DEFAULTS}
        return {**rest, "serving": serving}


def _by_name(value: object) -> object:
    """Accept ``models = ["a", "b"]`` beside tables."""
    names = split_list(value)
    return {str(name): {} for name in names} if isinstance(names, list) else names


class GatewayConfig(Section):
    """Everything that can be set."""

    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()
    streams: StreamsConfig = StreamsConfig()
    models: Annotated[dict[str, ServedModel], BeforeValidator(_by_name)] = Field(
        default={"centerface": ServedModel()}
    )
    inference: Annotated[LlmConfig, BeforeValidator(_only_inference_keys)] = LlmConfig()
    text: TextConfig = TextConfig()
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

    Variables without the delimiter (``CLAWSTREAM_HOME``) belong to others, unless they begin as a
    section does.
    """
    tables: dict[str, Any] = {}
    for name, value in environment.items():
        keys = name.removeprefix(ENV_PREFIX).lower().split(ENV_DELIMITER)
        if not name.startswith(ENV_PREFIX):
            continue
        if len(keys) < 2:
            _check_is_of_others(name, keys[0])
            continue
        nested: Any = value
        for key in reversed(keys):
            nested = {key: nested}
        tables = _merged(tables, nested)
    return tables


def _check_is_of_others(name: str, key: str) -> None:
    """Nobody else's variable begins as one of our sections: an underscore is missing."""
    section, _, rest = key.partition("_")
    if rest and section in GatewayConfig.model_fields:
        meant = f"{ENV_PREFIX}{section}{ENV_DELIMITER}{rest}".upper()
        raise ConfigError(f"{name}: is not read; did you mean {meant}?")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return result


_SECRETS = {"api_keys", "standard_keys", "background_keys", "admin_keys", "api_key"}
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
    "dataclass_type": "must be a table",
    "missing": "is needed",
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
    if first["type"] == "value_error" and _is_table(keys):
        # A check of a whole section: its text starts with the key.
        key, _, message = message.partition(" ")
        return f"{'.'.join([*keys, key])}: {message}"
    is_secret = first["type"] == "missing" or _SECRETS & set(keys)
    shown = "" if is_secret else f", got {_shown(first['input'])}"
    return f"{'.'.join(keys)}: {message}{shown}"


def _is_table(keys: list[str]) -> bool:
    return len(keys) == 1 or (keys[0] == "models" and (len(keys) == 2 or keys[-1] == "upstream"))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _suggestion(keys: list[str]) -> str:
    """``; did you mean …?`` when a known key of the same table is close."""
    if len(keys) == 1:
        known = list(GatewayConfig.model_fields)
    elif keys[0] == "models":
        known = ["path", "upstream", *_MODEL_DEFAULTS]
    else:
        section = GatewayConfig.model_fields[keys[0]].annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        known = list(section.model_fields)
    return did_you_mean(keys[-1], known, within="".join(f"{key}." for key in keys[:-1]))
