"""Configuration: precedence, and errors that name the option."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from engine.config import LlmConfig, ModelConfig, UpstreamConfig
from gateway.config import GatewayConfig, ServedModel, load_config, parse_config
from gateway.config_sections import ServerConfig
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


def test_variable_that_lacks_an_underscore_is_not_ignored() -> None:
    with pytest.raises(ConfigError, match=r"is not read; did you mean CLAWSTREAM_SERVER__PORT\?$"):
        load_config(environment={"CLAWSTREAM_SERVER_PORT": "1"})


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


def test_filters_may_come_from_the_environment() -> None:
    config = load_config(environment={"CLAWSTREAM_INFERENCE__CONTENT_FILTER": '["a{1,2}"]'})
    assert config.inference.content_filter == ("a{1,2}",)


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
        ({"inference": 5}, "inference: must be a table, got 5"),
        ({"inference": {"weights": "q4"}}, "inference.weights: must be auto, fp32, bf16 or int8"),
        (
            {"inference": {"weights": "fp32", "cheaper_weights": "q4"}},
            "inference.cheaper_weights: must be bf16 or int8, got 'q4'",
        ),
        (
            {"inference": {"weights": "bf16", "cheaper_weights": "bf16"}},
            "inference.cheaper_weights: must be cheaper than 'bf16', got 'bf16'",
        ),
        (
            {"inference": {"weights": "int8", "cheaper_weights": "bf16"}},
            "inference.cheaper_weights: must be cheaper than 'int8', got 'bf16'",
        ),
        (
            {"inference": {"cheaper_weights": "int8"}},
            "inference.cheaper_weights: needs weights = fp32 or bf16",
        ),
        ({"inference": {"min_rate": float("inf")}}, "inference.min_rate: Input should be a finite"),
        ({"inference": {"kv_cache_bytes": "x"}}, "inference.kv_cache_bytes: must be a whole"),
        (
            {"text": {"deadline_ms": 2000, "max_deadline_ms": 1000}},
            "text.deadline_ms: must be at most max_deadline_ms (1000), got 2000",
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
        ({"models": {"a": {"upstream": {"url": "x"}}}}, "models.a.upstream.model: is needed"),
        (
            {"models": {"a": {"upstream": {"url": "x", "model": "m"}}}},
            "models.a.upstream.url: must be like http://host:8000/v1, got 'x'",
        ),
        (
            {"models": {"a": {"upstream": {"apy_key": "x"}}}},
            "models.a.upstream.apy_key: unknown option; did you mean upstream.api_key?",
        ),
        (
            {"models": {"a": {"upstream": {"url": "http://x", "model": "m"}, "workers": 2}}},
            "models.a.upstream: takes the place of all other options",
        ),
        (
            {"server": {"host": "0.0.0.0"}},
            "server.api_keys: must be set to listen beyond loopback, on '0.0.0.0'",
        ),
        (
            {"server": {"tls_cert": "a.pem"}},
            "server.tls_key: must be set too: TLS needs a certificate and its key",
        ),
        ({"pacing": {"sse": "slow"}}, "pacing.sse: must be 'steady' or 'off'"),
        ({"pacing": {"max_rate": 10}}, "pacing.max_rate: must be at least min_rate (20), got 10"),
        ({"pacing": {"min_rate": 1}}, "pacing.lag_cap_ms: must hold more than one gap of min_rate"),
        ({"pacing": {"fill_rate": float("nan")}}, "pacing.fill_rate: Input should be a finite"),
        (
            {"limits": {"max_connections": True}},
            "limits.max_connections: must be a number, got true",
        ),
        (
            {"limits": {"hello_timeout_s": True}},
            "limits.hello_timeout_s: must be a number, got true",
        ),
        ({"models": {"a": {"workers": True}}}, "models.a.workers: must be a number, got true"),
        (
            {"models": {"a": {"upstream": {"url": "http://x", "model": "m", "max_retries": True}}}},
            "models.a.upstream.max_retries: must be a number, got true",
        ),
        ({"inference": {"threads": False}}, "inference.threads: must be a number, got false"),
        ({"models": {"a": {"workers": 65}}}, "models.a.workers: must be <= 64, got 65"),
        (
            {"streams": {"latest_deadline_ms": 2000, "max_deadline_ms": 1500}},
            "streams.latest_deadline_ms: must be at most max_deadline_ms (1500), got 2000",
        ),
        (
            {"streams": {"fifo_deadline_ms": 2000, "max_deadline_ms": 1500}},
            "streams.fifo_deadline_ms: must be at most max_deadline_ms (1500), got 2000",
        ),
        (
            {"server": {"allowed_hosts": ["https://app.example"]}},
            "server.allowed_hosts.0: must be names without scheme and port, got 'https://app.example'",
        ),
    ],
)
def test_error_names_the_option(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(tables)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "",
        "app.example",
        "https://",
        "https://a/b",
        "https://a?b",
        "https://a#b",
        "https://u@a",
        "https://a:port",
        "//a",
    ],
)
def test_origin_is_a_scheme_a_host_and_perhaps_a_port(origin: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^server\.allowed_origins\.1: must be like https://host:port"
    ):
        parse_config({"server": {"allowed_origins": ["https://app.example", origin]}})


@pytest.mark.parametrize(
    "origin", ["https://app.example", "http://[::1]:8400", "https://a:1/", "chrome-extension://abc"]
)
def test_origins_that_browsers_send_are_taken(origin: str) -> None:
    assert parse_config({"server": {"allowed_origins": [origin]}}).server.allowed_origins


@pytest.mark.parametrize("key", ["", " ", "a key", "key ", "k\u00e9y", "k\ney"])
def test_key_that_no_header_carries_is_refused_and_not_repeated(key: str) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(ConfigError) as caught:
            parse_config({"server": {"host": host, "api_keys": ["sesame", key]}})
        assert str(caught.value) == (
            "server.api_keys.1: must be printable ASCII without spaces, not empty"
        )


def test_error_about_keys_does_not_repeat_them() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"server": {"api_keys": ["sesame", 5]}})
    assert "sesame" not in str(caught.value)


def test_error_about_an_upstream_does_not_repeat_its_key() -> None:
    for upstream in (
        {"url": "http://x", "api_key": "sesame"},
        {"url": "x", "model": "m", "api_key": "sesame"},
        {"url": "http://x", "model": "m", "api_key": ["sesame"]},
    ):
        with pytest.raises(ConfigError) as caught:
            parse_config({"models": {"a": {"upstream": upstream}}})
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
    """Default by key, from the tables; several keys may share a row. Keys of ``[inference]`` and
    ``[pacing]`` carry the section, which share names with others."""
    rows = (line.split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `"))
    return {key.strip("` "): cells[2].strip("` ") for cells in rows for key in cells[1].split(",")}


def test_every_key_is_documented_with_its_default() -> None:
    config, found = GatewayConfig(), documented()
    sections = [config.server, config.limits, config.streams, config.logging]
    for section in sections:
        for key, value in section.model_dump().items():
            assert shown(value) == found[key], key
    for prefix, section in (("pacing", config.pacing), ("text", config.text)):
        for key, value in section.model_dump().items():
            assert shown(value) == found[f"{prefix}.{key}"], key
    for field in fields(ModelConfig):
        assert shown(field.default) == found[field.name], field.name
    for field in fields(LlmConfig):
        assert shown(field.default) == found[f"inference.{field.name}"], field.name
    for field in fields(UpstreamConfig):
        default = "needed" if field.default is MISSING else shown(field.default)
        assert default == found[f"upstream.{field.name}"], field.name


def shown(value: object) -> str:
    if value is None:
        return "none"
    listed = list(value) if isinstance(value, tuple) else value
    return json.dumps(listed)
