"""From the configured models to the engine that serves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import msgspec

from engine.base import Engine
from engine.composite import CompositeEngine
from engine.config import LlmConfig, ModelConfig
from engine.did_you_mean import did_you_mean
from engine.errors import EngineError
from engine.llm.client import LlmEngine
from engine.llm.upstream.engine import UpstreamEngine
from engine.manifest import Manifest
from engine.models.repository import Repository
from engine.models.store import ModelStore
from engine.vision import VisionEngine
from gateway.config import GatewayConfig, ServedModel
from gateway.errors import ConfigError
from gateway.net.server import tls_context
from gateway.session.options import CHAT, TEXT_KINDS

# ONNX Runtime's, for a hint when a name is misspelt.
KNOWN_PROVIDERS = tuple(
    f"{name}ExecutionProvider"
    for name in (
        *("CPU", "CUDA", "Tensorrt", "NvTensorRTRTX", "ROCM", "MIGraphX", "OpenVINO", "Dnnl"),
        *("CoreML", "Dml", "QNN", "Xnnpack", "Nnapi", "Azure", "CANN", "ACL", "ArmNN", "VitisAI"),
        *("Snpe", "TVM", "Vulkan", "WebGpu", "JS", "Rknpu"),
    )
)
_NO_MODELS = "models: name at least one"


@dataclass(frozen=True, slots=True)
class Serving:
    """The engine, not started, and what its models are, by the name that clients use."""

    engine: Engine
    manifests: Mapping[str, Manifest]

    @property
    def kinds(self) -> dict[str, str]:
        return {name: manifest.kind for name, manifest in self.manifests.items()}


@dataclass(frozen=True, slots=True)
class Findings:
    """What ``check`` found: errors that ``build_serving`` or the server's start would raise, and
    texts about what may be a mistake."""

    errors: tuple[ConfigError | EngineError, ...]
    warnings: tuple[str, ...]


def build_serving(
    config: GatewayConfig, store: ModelStore, service_level: Callable[[], int] = lambda: 0
) -> Serving:
    """Resolve the models and make one engine of them all. ``service_level`` is 0 without pressure,
    and one more for each step that calls for a cheaper variant or precision of a model.

    Raises:
        ConfigError: nothing is served, or a model's options do not fit it.
        EngineError: a model is unknown or not there; the text says how to get it.
    """
    if not config.models:
        raise ConfigError(_NO_MODELS)
    manifests = {name: _manifest(name, served, store) for name, served in config.models.items()}
    for name, manifest in manifests.items():
        check_model(name, manifest.kind, config)
    check_inference(config, {name: manifest.kind for name, manifest in manifests.items()})
    upstream = {
        name: served.upstream
        for name, served in config.models.items()
        if served.upstream is not None
    }
    texts = {
        name: (manifest, config.inference)
        for name, manifest in manifests.items()
        if manifest.kind in TEXT_KINDS and name not in upstream
    }
    pictures = {
        name: (manifest, config.models[name].serving)
        for name, manifest in manifests.items()
        if manifest.kind not in TEXT_KINDS
    }
    engines: list[Engine] = []
    if pictures:
        repositories = {name: _repository(name, config.models[name], store) for name in pictures}
        engines.append(
            VisionEngine(pictures, repositories=repositories, service_level=service_level)
        )
    if texts:
        engines.append(LlmEngine(texts, service_level=service_level))
    if upstream:
        engines.append(UpstreamEngine(upstream))
    return Serving(engines[0] if len(engines) == 1 else CompositeEngine(engines), manifests)


def check(config: GatewayConfig, store: ModelStore) -> Findings:
    """Everything that can be known to be wrong without starting anything, in the file's order."""
    errors: list[ConfigError | EngineError] = []
    try:
        tls_context(config.server)
    except ConfigError as error:
        errors.append(error)
    if not config.models:
        errors.append(ConfigError(_NO_MODELS))
    kinds: dict[str, str] = {}
    for name, served in config.models.items():
        try:
            kinds[name] = kind = _manifest(name, served, store).kind
            check_model(name, kind, config)
            if kind not in TEXT_KINDS:
                _repository(name, served, store).read()
        except (ConfigError, EngineError) as error:
            errors.append(error)
    try:
        check_inference(config, kinds)
    except ConfigError as error:
        errors.append(error)
    return Findings(tuple(errors), (*_unused_inference(config, kinds), *_unknown_providers(config)))


def check_model(name: str, kind: str, config: GatewayConfig) -> None:
    """Raises ConfigError when the options do not fit a model of that kind."""
    served = config.models[name]
    if served.upstream is not None and config.inference.content_filter:
        # Its patterns may take milliseconds, which the gateway's loop has not.
        raise ConfigError(
            "inference.content_filter: cannot be applied to the answers of the upstream model "
            f"{name!r}; let its server filter, or serve it from a gateway without a filter"
        )
    if kind in TEXT_KINDS:
        check_text_model(name, served)
        return
    largest = config.limits.max_frame_bytes
    if largest > served.serving.max_item_bytes:
        raise ConfigError(
            f"models.{name}.max_item_bytes: must be at least limits.max_frame_bytes ({largest}), "
            f"got {served.serving.max_item_bytes}"
        )


def check_inference(config: GatewayConfig, kinds: Mapping[str, str]) -> None:
    """Raises ConfigError when ``[inference]`` promises what none of the models can do."""
    texts = [name for name, kind in kinds.items() if kind in TEXT_KINDS]
    is_elsewhere = [config.models[name].upstream is not None for name in texts]
    if config.inference.cheaper_weights and texts and all(is_elsewhere):
        raise ConfigError(
            f"inference.cheaper_weights: is not for an upstream model such as {texts[0]!r}, whose "
            "precision is its server's own; leave it out"
        )


def max_prompt_bytes(config: GatewayConfig) -> int:
    """The largest prompt that any of the models takes."""
    upstream = (served.upstream for served in config.models.values())
    limits = [served.max_prompt_bytes for served in upstream if served is not None]
    return max([config.inference.max_prompt_bytes, *limits])


def _unused_inference(config: GatewayConfig, kinds: Mapping[str, str]) -> Iterator[str]:
    """``kinds`` lacks the models that are not there, which may be language models."""
    is_known = len(kinds) == len(config.models)
    if config.inference != LlmConfig() and is_known and TEXT_KINDS.isdisjoint(kinds.values()):
        yield "inference: changes nothing, there is no language model in models"


def _unknown_providers(config: GatewayConfig) -> Iterator[str]:
    """Names may be those of plugins, so nobody but ONNX Runtime can be sure."""
    for name, served in config.models.items():
        for provider in served.serving.execution_providers:
            if provider not in KNOWN_PROVIDERS:
                hint = did_you_mean(provider, KNOWN_PROVIDERS)
                yield f"models.{name}.execution_providers: {provider!r} is not known{hint}"


def _manifest(name: str, served: ServedModel, store: ModelStore) -> Manifest:
    if served.upstream is not None:
        return Manifest(name=name, version=served.upstream.version, kind=CHAT)
    return msgspec.structs.replace(store.resolve(served.path or name), name=name)


def _repository(name: str, served: ServedModel, store: ModelStore) -> Repository:
    serving = served.serving
    return store.repository(
        name, served.path or name, policy=serving.versions, variants=serving.variants
    )


def check_text_model(name: str, served: ServedModel) -> None:
    """Raises ConfigError when a language model has options for pictures."""
    default = ModelConfig()
    for field in fields(ModelConfig):
        if getattr(served.serving, field.name) != getattr(default, field.name):
            raise ConfigError(
                f"models.{name}.{field.name}: is not for a language model; see [inference]"
            )
