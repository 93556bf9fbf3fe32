"""Configuration: precedence, and errors that name the option."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine.config import ModelConfig
from gateway.config import (
    GatewayConfig,
    InferenceConfig,
    ServedModel,
    ServerConfig,
    load_config,
    parse_config,
)
from gateway.errors import ConfigError

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs" / "configuration.md"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    return path


def test_defaults_are_valid_and_serve_on_loopback() -> None:
    config = load_config(environment={})
    assert config.server.host == "127.0.0.1"
    assert list(config.models) == ["centerface"]


def test_command_line_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\nhost = '::1'\n[limits]\nmax_streams = 3\n")
    environment = {"CLAWSTREAM_SERVER__PORT": "2", "CLAWSTREAM_LIMITS__MAX_STREAMS": "4"}
    config = load_config(path, {"server": {"port": 3}}, environment)
    assert (config.server.port, config.limits.max_streams) == (3, 4)
    assert config.server.host == "::1"
    assert config.limits.max_connections == 1024


def test_environment_writes_lists_with_commas_or_as_json() -> None:
    for text in ("a,b", " a, b ", '["a", "b"]'):
        config = load_config(environment={"CLAWSTREAM_SERVER__API_KEYS": text})
        assert config.server.api_keys == ("a", "b")


def test_environment_of_others_is_left_alone() -> None:
    load_config(environment={"CLAWSTREAM_HOME": "/x", "PATH": "/bin", "OTHER__THING": "1"})


def test_unknown_section_in_the_environment_fails() -> None:
    with pytest.raises(ConfigError, match=r"^servr: unknown option; did you mean server\?$"):
        load_config(environment={"CLAWSTREAM_SERVR__PORT": "1"})


def test_file_with_only_the_inference_names_loads(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[inference]\nmax_batch_size = 32\npreempt_ratio = 0.3\nscheduler_interval = 50\n"
        "cache_block_size = 16\nmax_seq_length = 4096\nfused_attention = true\n"
        "zero_copy_fallback = false\n[pacing]\ncapacity = 50\nfill_rate = 30\n",
    )
    config = load_config(path, environment={})
    assert config.inference.scheduler_interval == 50
    assert not config.inference.zero_copy_fallback
    assert config.pacing.fill_rate == 30


def test_models_take_the_engine_names_and_a_path(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[models.faces]\npath = 'centerface'\nworkers = 2\nmax_batch_size = 4\n"
        "execution_providers = ['CPUExecutionProvider']\n",
    )
    served = load_config(path, environment={}).models["faces"]
    assert served.path == "centerface"
    assert (served.serving.workers, served.serving.max_batch_size) == (2, 4)


def test_models_may_be_a_list_of_names() -> None:
    config = parse_config({"models": ["centerface", "efficientnet-lite0"]})
    assert config.models == {"centerface": ServedModel(), "efficientnet-lite0": ServedModel()}
    assert load_config(environment={}, overrides={"models": {"x": {}}}).models.keys() == {"x"}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"inference": {"max_batch_size": 0}}, "inference.max_batch_size: must be >= 1, got 0"),
        (
            {"inference": {"max_batch_sise": 1}},
            "inference.max_batch_sise: unknown option; did you mean inference.max_batch_size?",
        ),
        ({"server": {"zzzzzz": 1}}, "server.zzzzzz: unknown option"),
        ({"server": {"port": 70000}}, "server.port: must be <= 65535, got 70000"),
        ({"server": {"port": "eighty"}}, "server.port: must be a whole number, got 'eighty'"),
        ({"server": 5}, "server: must be a table, got 5"),
        ({"limits": {"ping_interval_s": 0}}, "limits.ping_interval_s: must be > 0, got 0"),
        (
            {"logging": {"level": "loud"}},
            "logging.level: must be 'debug', 'info', 'warning' or 'error', got 'loud'",
        ),
        (
            {"models": {"a": {"max_batch_size": 0}}},
            "models.a.max_batch_size: must be >= 1, got 0",
        ),
        (
            {"models": {"a": {"workers": "two"}}},
            "models.a.workers: must be a whole number, got 'two'",
        ),
        (
            {"models": {"a": {"wokers": 2}}},
            "models.a.wokers: unknown option; did you mean models.a.workers?",
        ),
        ({"models": {"a": {"prefetch": 2}}}, "models.a.prefetch: unknown option"),
        (
            {"server": {"host": "0.0.0.0"}},
            "server.api_keys: must be set to listen beyond loopback, on '0.0.0.0'",
        ),
        (
            {"server": {"tls_cert": "a.pem"}},
            "server.tls_key: must be set too: TLS needs a certificate and its key",
        ),
        ({"pacing": {"fill_rate": float("nan")}}, "pacing.fill_rate: Input should be a finite"),
    ],
)
def test_error_names_the_option(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(tables)
    assert str(caught.value).startswith(message)


def test_error_about_keys_does_not_repeat_them() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"server": {"api_keys": ["sesame", 5]}})
    assert "sesame" not in str(caught.value)


def test_keys_do_not_appear_when_the_configuration_is_printed() -> None:
    assert "sesame" not in repr(ServerConfig(api_keys=("sesame",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ServerConfig(host=host).api_keys == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "gateway.example", ""])
def test_everything_else_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^server\.api_keys"):
        parse_config({"server": {"host": host}})
    assert parse_config({"server": {"host": host, "api_keys": ["k"]}}).server.host == host


def test_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        load_config(tmp_path / "absent.toml", environment={})
    with pytest.raises(ConfigError, match=r"gateway\.toml: not valid TOML"):
        load_config(write(tmp_path, "server = ["), environment={})


def documented() -> dict[str, str]:
    """Default by key, from the tables; several keys may share a row."""
    rows = (line.split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `"))
    return {
        key.strip("` ").removeprefix("inference.").removeprefix("pacing."): cells[2].strip("` ")
        for cells in rows
        for key in cells[1].split(",")
    }


def test_every_key_is_documented_with_its_default() -> None:
    config, found = GatewayConfig(), documented()
    sections = [config.server, config.limits, config.streams, config.pacing, config.logging]
    for section in sections:
        for key, value in section.model_dump().items():
            assert shown(value) == found[key], key
    for field in fields(ModelConfig):
        if field.name != "max_batch_size":  # of a model and of [inference]
            assert shown(field.default) == found[field.name], field.name
    for key in InferenceConfig.model_fields:
        assert key in found


def shown(value: object) -> str:
    if value is None:
        return "none"
    listed = list(value) if isinstance(value, tuple) else value
    return json.dumps(listed)
