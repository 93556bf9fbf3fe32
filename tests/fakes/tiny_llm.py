"""A language model of 100,000 random weights in a Hugging Face folder, made in milliseconds.

Its tokenizer has one token per byte and three special tokens, so every text and every answer of
the model can be encoded and decoded. Greedy answers look random but are the same every time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIAL_TOKENS)
END_TOKEN = VOCABULARY - 1  # <|im_end|>

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def write_tiny_llm(
    folder: Path, seed: int = 0, *, model_type: str = "llama", **config: Any
) -> Path:
    """Write ``config.json``, weights and tokenizer into ``folder`` and return it.

    ``config`` replaces or adds keys of ``config.json``, such as ``num_hidden_layers=1``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = tiny_config(model_type, **config)
    (folder / "config.json").write_text(json.dumps(values, indent=2))
    save_file(random_weights(values, seed), folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)
    return folder


def tiny_config(model_type: str = "llama", **config: Any) -> dict[str, Any]:
    """The content of ``config.json``: two layers, four query heads over two K/V heads."""
    return {
        "architectures": [_ARCHITECTURES.get(model_type, "Unknown")],
        "model_type": model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": VOCABULARY - 2,
        "eos_token_id": END_TOKEN,
        "dtype": "float32",
        **config,
    }


def random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """One tensor per name that a checkpoint of this configuration has."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    def vector(size: int, mean: float) -> torch.Tensor:
        return mean + 0.1 * torch.randn(size, generator=generator)

    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head_dim = config["head_dim"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    has_bias = config["attention_bias"] or config["model_type"] == "qwen2"
    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            weights[f"{prefix}self_attn.{name}_proj.weight"] = matrix(rows, hidden)
            if has_bias:
                weights[f"{prefix}self_attn.{name}_proj.bias"] = vector(rows, 0.0)
        weights[f"{prefix}self_attn.o_proj.weight"] = matrix(hidden, queries)
        if config["attention_bias"]:
            weights[f"{prefix}self_attn.o_proj.bias"] = vector(hidden, 0.0)
        if config["model_type"] == "qwen3":
            weights[f"{prefix}self_attn.q_norm.weight"] = vector(head_dim, 1.0)
            weights[f"{prefix}self_attn.k_norm.weight"] = vector(head_dim, 1.0)
        weights[f"{prefix}mlp.gate_proj.weight"] = matrix(wide, hidden)
        weights[f"{prefix}mlp.up_proj.weight"] = matrix(wide, hidden)
        weights[f"{prefix}mlp.down_proj.weight"] = matrix(hidden, wide)
        weights[f"{prefix}input_layernorm.weight"] = vector(hidden, 1.0)
        weights[f"{prefix}post_attention_layernorm.weight"] = vector(hidden, 1.0)
    weights["model.norm.weight"] = vector(hidden, 1.0)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return weights


def _write_tokenizer(folder: Path) -> None:
    bytes_as_text = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate(bytes_as_text)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
