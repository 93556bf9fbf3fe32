"""Llama-family GGUF files: once into a Hugging Face folder, which loads in seconds ever after.

The folder holds ``config.json``, ``generation_config.json``, ``model.safetensors`` (float16: the
source's 4-bit and 8-bit weights have float16 scales, and two more bytes would only double the
file), ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import gguf
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(source: Path, target: Path) -> None:
    """Write the model in ``source`` to the new folder ``target``; takes about half a minute.

    Raises:
        ValueError: not a Llama, or its tokenizer is not one whose rules are known here.
    """
    pre_tokenizer = _pre_tokenizer(source)
    target.mkdir()
    # The store's caller shows progress; transformers would draw two bars of its own into it.
    with redirect_stderr(io.StringIO()):
        _convert_weights(source, target)
        _convert_tokenizer(source, target, pre_tokenizer)


def _pre_tokenizer(source: Path) -> PreTokenizer:
    """How text is cut before merging, which transformers does not read from the file."""
    fields = gguf.GGUFReader(source).fields
    architecture = _text(fields, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"{source.name} holds the architecture {architecture!r}, not llama")
    rules = _text(fields, "tokenizer.ggml.pre")
    if rules != "smollm":
        raise ValueError(f"{source.name} has the pre-tokenizer {rules!r}; known is 'smollm'")
    return PreTokenizerSequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _convert_weights(source: Path, target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype="float16",
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)  # the same memory as the embedding
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    # These describe the file it came from, and would make readers dequantise once more.
    for key in ("quantization_config", "_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    (target / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
    model.generation_config.save_pretrained(target)


def _convert_tokenizer(source: Path, target: Path, pre_tokenizer: PreTokenizer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, local_files_only=True
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.save_pretrained(target)


def _text(fields: dict[str, Any], name: str) -> str:
    return str(fields[name].contents()) if name in fields else ""
