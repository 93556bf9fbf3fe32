"""Which engine the configured models ask for; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.composite import CompositeEngine
from engine.llm.client import LlmEngine
from engine.llm.upstream.engine import UpstreamEngine
from engine.manifest import Manifest
from engine.models.errors import MissingModel
from engine.models.store import ModelStore
from engine.vision import VisionEngine
from gateway.config import parse_config
from gateway.errors import ConfigError
from gateway.serving import Serving, build_serving, check, max_prompt_bytes

pytestmark = pytest.mark.unit

UPSTREAM = {"upstream": {"url": "http://127.0.0.1:1/v1", "model": "big", "max_prompt_bytes": 2**22}}


class Store(ModelStore):
    """Knows two models without files."""

    def resolve(self, name_or_path: str) -> Manifest:
        return Manifest(name=name_or_path, kind={"words": "chat", "faces": "faces"}[name_or_path])


def build(tmp_path: Path, **models: Any) -> Serving:
    return build_serving(parse_config({"models": models}), Store(tmp_path))


async def test_each_kind_has_its_engine(tmp_path: Path) -> None:
    assert isinstance(build(tmp_path, faces={}).engine, VisionEngine)
    assert isinstance(build(tmp_path, chat={"path": "words"}).engine, LlmEngine)
    assert isinstance(build(tmp_path, big=UPSTREAM).engine, UpstreamEngine)


async def test_all_kinds_together_are_one_engine(tmp_path: Path) -> None:
    serving = build(tmp_path, faces={}, chat={"path": "words"}, big=UPSTREAM)
    assert isinstance(serving.engine, CompositeEngine)
    assert serving.kinds == {"faces": "faces", "chat": "chat", "big": "chat"}
    listed = {model.model for model in serving.engine.statistics().models}
    assert listed == {"faces", "chat", "big"}


def test_a_language_model_has_no_options_for_pictures(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^models\.words\.workers: .*\[inference\]"):
        build(tmp_path, words={"workers": 2})


def test_nothing_to_serve_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^models: name at least one"):
        build_serving(parse_config({"models": {}}), Store(tmp_path))


def test_the_largest_prompt_is_that_of_the_most_patient_model() -> None:
    assert max_prompt_bytes(parse_config({})) == 2**20
    assert max_prompt_bytes(parse_config({"models": {"big": UPSTREAM}})) == 2**22


async def test_frame_that_the_gateway_takes_must_fit_the_model(tmp_path: Path) -> None:
    limits = {"max_frame_bytes": 16 * 2**20}
    tables = {"limits": limits, "models": {"faces": {}}}
    with pytest.raises(ConfigError, match=r"^models\.faces\.max_item_bytes: .*16777216"):
        build_serving(parse_config(tables), Store(tmp_path))
    tables["models"] = {"faces": {"max_item_bytes": 16 * 2**20}, "words": {}, "big": UPSTREAM}
    build_serving(parse_config(tables), Store(tmp_path))


def test_content_filter_that_an_upstream_model_would_not_have_is_refused(tmp_path: Path) -> None:
    tables = {"models": {"words": {}, "big": UPSTREAM}, "inference": {"content_filter": ["bad"]}}
    with pytest.raises(ConfigError, match=r"^inference\.content_filter: .*upstream model 'big'"):
        build_serving(parse_config(tables), Store(tmp_path))
    (error,) = check(parse_config(tables), Store(tmp_path)).errors
    assert str(error).startswith("inference.content_filter: ")


def test_cheaper_weights_that_no_model_could_take_are_refused(tmp_path: Path) -> None:
    inference = {"weights": "fp32", "cheaper_weights": "int8"}
    elsewhere = parse_config({"models": {"faces": {}, "big": UPSTREAM}, "inference": inference})
    with pytest.raises(ConfigError, match=r"^inference\.cheaper_weights: .*upstream .*'big'"):
        build_serving(elsewhere, Store(tmp_path))
    (error,) = check(elsewhere, Store(tmp_path)).errors
    assert str(error).startswith("inference.cheaper_weights: ")
    ours = {"models": {"words": {}, "big": UPSTREAM}, "inference": inference}
    assert check(parse_config(ours), Store(tmp_path)).errors == ()


def test_a_sound_configuration_has_no_findings(tmp_path: Path) -> None:
    findings = check(parse_config({"models": {"faces": {}, "words": {}}}), Store(tmp_path))
    assert (findings.errors, findings.warnings) == ((), ())


def test_all_that_would_keep_it_from_starting_is_found_at_once(tmp_path: Path) -> None:
    config = parse_config(
        {
            "server": {"tls_cert": "absent.pem", "tls_key": "absent.pem"},
            "limits": {"max_frame_bytes": 16 * 2**20},
            "models": {
                "faces": {},
                "words": {"workers": 2},
                "mine": {"path": str(tmp_path / "absent.onnx")},
                "big": UPSTREAM,
            },
        }
    )

    class FileStore(Store):
        def resolve(self, name_or_path: str) -> Manifest:
            if name_or_path.endswith(".onnx"):
                return ModelStore.resolve(self, name_or_path)
            return super().resolve(name_or_path)

    errors = check(config, FileStore(tmp_path)).errors
    assert [type(error) for error in errors] == [*[ConfigError] * 3, MissingModel]
    assert [str(error).partition(":")[0] for error in errors[:3]] == [
        "server.tls_cert",
        "models.faces.max_item_bytes",
        "models.words.workers",
    ]
    assert "absent.onnx" in str(errors[3])


def test_provider_that_nobody_has_heard_of_is_only_a_warning(tmp_path: Path) -> None:
    providers = ["CUDAExecutionProvider", "CUDAExecutionProvidr"]
    config = parse_config({"models": {"faces": {"execution_providers": providers}}})
    findings = check(config, Store(tmp_path))
    assert findings.errors == ()
    assert findings.warnings == (
        "models.faces.execution_providers: 'CUDAExecutionProvidr' is not known; "
        "did you mean CUDAExecutionProvider?",
    )


def test_nothing_to_serve_is_found(tmp_path: Path) -> None:
    (error,) = check(parse_config({"models": {}}), Store(tmp_path)).errors
    assert str(error) == "models: name at least one"
