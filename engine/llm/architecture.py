"""What a model's ``config.json`` says, checked: one decoder serves the whole Llama family.

llama (SmolLM too), mistral, qwen2 and qwen3 differ in where they have biases and in whether
queries and keys are normalised. Whatever else a configuration asks for is refused by name: a
model that is computed wrongly still writes fluent text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import StartupError

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "dynamic")

_DEFAULT_ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding. ``factor`` and what follows stretch the context."""

    rope_type: str
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes and variants of one model. ``max_positions`` is the context that it was made for;
    ``sliding_window`` how far back its layers look, or None for all the way."""

    model_type: str
    vocabulary: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    rope: Rope
    tied_head: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    sliding_window: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def group_size(self) -> int:
        """Query heads that share one K/V head."""
        return self.num_heads // self.num_kv_heads


def read_architecture(folder: Path) -> Architecture:
    """The architecture in ``folder/config.json``.

    Raises:
        StartupError: no such file, or something in it is not supported; the text names it.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
        return parse_architecture(config)
    except FileNotFoundError:
        raise StartupError(f"{folder} is not a model folder: it has no config.json") from None
    except KeyError as error:
        raise StartupError(f"{path}: the key {error} is missing") from None
    except (ValueError, TypeError) as error:
        raise StartupError(f"{path}: {error}") from error


def parse_architecture(config: dict[str, Any]) -> Architecture:
    """Like :func:`read_architecture`, but raises ``ValueError`` and ``KeyError``."""
    model_type = config["model_type"]
    _refuse_unsupported(config, model_type)
    num_heads = config["num_attention_heads"]
    attention_bias = bool(config.get("attention_bias", False))
    architecture = Architecture(
        model_type=model_type,
        vocabulary=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
        rms_norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
        rope=_parse_rope(config),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=attention_bias or model_type == "qwen2",
        has_output_bias=attention_bias and model_type != "qwen2",
        has_mlp_bias=bool(config.get("mlp_bias", False)),
        has_qk_norm=model_type == "qwen3",
        sliding_window=_sliding_window(config, model_type),
        eos_token_ids=_as_tuple(config.get("eos_token_id")),
    )
    if architecture.num_heads % architecture.num_kv_heads:
        raise ValueError(
            f"{architecture.num_heads} query heads cannot be shared out over "
            f"{architecture.num_kv_heads} K/V heads"
        )
    if architecture.head_dim % 2:
        raise ValueError(f"head_dim must be even, got {architecture.head_dim}")
    return architecture


def _refuse_unsupported(config: dict[str, Any], model_type: str) -> None:
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"the architecture {model_type!r} is not supported; known are {', '.join(MODEL_TYPES)}"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"the activation {activation!r} is not supported, only silu")
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ValueError(
            f"weights quantised by {method!r} cannot be read; use the model's full-precision files"
        )


def _parse_rope(config: dict[str, Any]) -> Rope:
    """Newer files have everything in ``rope_parameters``, older ones ``rope_theta`` and
    ``rope_scaling``."""
    values = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = values.get("rope_type", values.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"the rope type {rope_type!r} is not supported; known are {', '.join(ROPE_TYPES)}"
        )
    partial = values.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ValueError(f"partial_rotary_factor must be 1, got {partial}")
    theta = values.get("rope_theta") or config.get("rope_theta") or _DEFAULT_ROPE_THETA
    if rope_type in ("default", "dynamic"):
        # Dynamic scaling starts beyond max_position_embeddings, where nothing is served.
        return Rope(rope_type="default", theta=theta)
    if rope_type == "linear":
        return Rope(rope_type=rope_type, theta=theta, factor=values["factor"])
    return Rope(
        rope_type=rope_type,
        theta=theta,
        factor=values["factor"],
        low_freq_factor=values["low_freq_factor"],
        high_freq_factor=values["high_freq_factor"],
        original_max_positions=values.get("original_max_position_embeddings")
        or config["max_position_embeddings"],
    )


def _sliding_window(config: dict[str, Any], model_type: str) -> int | None:
    window: int | None = config.get("sliding_window")
    layer_types = config.get("layer_types")
    if layer_types is not None:
        return window if "sliding_attention" in layer_types else None
    if model_type in ("qwen2", "qwen3"):
        if not config.get("use_sliding_window", False):
            return None
        slides = config.get("max_window_layers", 0) < config["num_hidden_layers"]
        return window if slides else None
    return window if model_type == "mistral" else None


def _as_tuple(token_ids: int | list[int] | None) -> tuple[int, ...]:
    if token_ids is None:
        return ()
    return (token_ids,) if isinstance(token_ids, int) else tuple(token_ids)
