from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import StartupError
from engine.llm.architecture import Rope, parse_architecture, read_architecture
from tests.fakes.tiny_llm import END_TOKEN, tiny_config

pytestmark = pytest.mark.unit


def test_sizes_and_defaults_are_read() -> None:
    config = tiny_config()
    for key in ("head_dim", "num_key_value_heads"):
        del config[key]
    architecture = parse_architecture(config)
    assert architecture.head_dim == 16
    assert architecture.num_kv_heads == 4
    assert architecture.group_size == 1
    assert architecture.eos_token_ids == (END_TOKEN,)
    assert not architecture.tied_head


@pytest.mark.parametrize(
    ("model_type", "attention_bias", "qkv", "output", "norms"),
    [
        ("llama", False, False, False, False),
        ("llama", True, True, True, False),
        ("mistral", False, False, False, False),
        ("qwen2", False, True, False, False),
        ("qwen3", False, False, False, True),
        ("qwen3", True, True, True, True),
    ],
)
def test_families_differ_in_biases_and_norms(
    model_type: str, attention_bias: bool, qkv: bool, output: bool, norms: bool
) -> None:
    architecture = parse_architecture(tiny_config(model_type, attention_bias=attention_bias))
    assert architecture.has_qkv_bias is qkv
    assert architecture.has_output_bias is output
    assert architecture.has_qk_norm is norms


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox' is not supported; known are llama, mistral"),
        ({"hidden_act": "gelu"}, "the activation 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "the rope type 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, got 0.5"),
        ({"num_key_value_heads": 3}, "4 query heads cannot be shared out over 3"),
        ({"head_dim": 15}, "head_dim must be even, got 15"),
        ({"rope_parameters": {"rope_type": "linear"}}, "the key 'factor' is missing"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, values: dict[str, Any], text: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config() | values))
    with pytest.raises(StartupError, match=text):
        read_architecture(tmp_path)


def test_folder_without_a_readable_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"has no config\.json"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StartupError, match=r"config\.json: "):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StartupError, match="the key 'model_type' is missing"):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("values", "rope"),
    [
        ({}, Rope(rope_type="default", theta=10_000.0)),
        ({"rope_theta": 5e5}, Rope(rope_type="default", theta=5e5)),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
            Rope(rope_type="default", theta=1e5),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            Rope(rope_type="linear", theta=10_000.0, factor=2.0),
        ),
        # Dynamic scaling begins where the context that is served ends.
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            Rope(rope_type="default", theta=10_000.0),
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 512,
                }
            },
            Rope(
                rope_type="llama3",
                theta=10_000.0,
                factor=8.0,
                original_max_positions=512,
            ),
        ),
    ],
)
def test_rope_is_read_in_its_old_and_its_new_form(values: dict[str, Any], rope: Rope) -> None:
    assert parse_architecture(tiny_config() | values).rope == rope


@pytest.mark.parametrize(
    ("model_type", "values", "window"),
    [
        ("llama", {"sliding_window": 64}, None),
        ("mistral", {"sliding_window": 64}, 64),
        ("mistral", {"sliding_window": None}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, 64),
        ("qwen3", {"sliding_window": 64, "layer_types": ["full_attention"] * 2}, None),
        ("qwen3", {"sliding_window": 64, "layer_types": ["sliding_attention"] * 2}, 64),
    ],
)
def test_sliding_windows_are_noticed_where_layers_use_them(
    model_type: str, values: dict[str, Any], window: int | None
) -> None:
    assert parse_architecture(tiny_config(model_type) | values).sliding_window == window


def test_several_end_tokens_are_kept() -> None:
    assert parse_architecture(tiny_config(eos_token_id=[7, 9])).eos_token_ids == (7, 9)
    assert parse_architecture(tiny_config(eos_token_id=None)).eos_token_ids == ()
