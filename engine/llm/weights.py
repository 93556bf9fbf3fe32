"""Reads a Hugging Face folder's safetensors into a :class:`Decoder`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import StartupError
from engine.llm.architecture import Architecture
from engine.llm.decoder import Decoder, Layer
from engine.llm.hidden_basis import HiddenBasis
from engine.llm.linear import DenseLinear, Int8Linear, Linear
from engine.llm.rope import interleave_heads, rotations

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


class Checkpoint:
    """The tensors of a folder by name, read when asked for, from one file or from shards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._file_of = self._read_index()

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Raises ``StartupError`` if it is missing or has another shape."""
        file_name = self._file_of.get(name)
        if file_name is None:
            raise StartupError(f"{self._folder} has no tensor {name}")
        tensor: Tensor = self._open(file_name).get_tensor(name)
        if tuple(tensor.shape) != shape:
            found = list(tensor.shape)
            raise StartupError(f"{self._folder}: {name} should be {list(shape)}, is {found}")
        return tensor

    def _read_index(self) -> dict[str, str]:
        index = self._folder / _INDEX_FILE
        if index.is_file():
            try:
                return dict(json.loads(index.read_text("utf-8"))["weight_map"])
            except (ValueError, KeyError) as error:
                raise StartupError(f"{index} cannot be read: {error!r}") from error
        return dict.fromkeys(self._open(_SINGLE_FILE).keys(), _SINGLE_FILE)

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            path = self._folder / file_name
            try:
                self._files[file_name] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise StartupError(
                    f"{self._folder} has no weights: {file_name} is missing"
                ) from None
            except (SafetensorError, OSError) as error:
                raise StartupError(f"{path} cannot be read: {error}") from error
        return self._files[file_name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What the weights become: ``dtype`` is what activations have, too."""

    dtype: torch.dtype
    is_int8: bool
    device: torch.device

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """The product with ``weight`` [outputs, inputs]."""
        if bias is not None:
            bias = self.vector(bias)
        if self.is_int8:
            return Int8Linear(weight.float(), bias)
        return DenseLinear(weight.to(self.device, self.dtype), bias)

    def vector(self, values: Tensor) -> Tensor:
        """A bias, or a normalisation's gain."""
        return values.to(self.device, self.dtype)


def load_decoder(
    folder: Path, architecture: Architecture, precision: Precision, num_positions: int
) -> Decoder:
    """Read the weights; ``num_positions`` is the longest sequence that will be run.

    Raises:
        StartupError: a file or a tensor is missing, damaged or of another shape.
    """
    return _Loader(Checkpoint(folder), architecture, precision).decoder(num_positions)


class _Loader:
    """Stacks, interleaves and, for int8, rotates what the checkpoint has."""

    def __init__(
        self, checkpoint: Checkpoint, architecture: Architecture, precision: Precision
    ) -> None:
        self._checkpoint = checkpoint
        self._architecture = architecture
        self._precision = precision
        self._basis = HiddenBasis(architecture.hidden_size) if precision.is_int8 else None

    def decoder(self, num_positions: int) -> Decoder:
        a = self._architecture
        embedding = self._checkpoint.tensor(
            "model.embed_tokens.weight", a.vocabulary, a.hidden_size
        )
        head = embedding
        if not a.tied_head:
            head = self._checkpoint.tensor("lm_head.weight", a.vocabulary, a.hidden_size)
        norm, head = self._behind_norm("model.norm.weight", head)
        return Decoder(
            architecture=a,
            dtype=self._precision.dtype,
            embedding=self._embedding(embedding),
            layers=[self._layer(index) for index in range(a.num_layers)],
            norm=norm,
            head=self._precision.linear(head),
            rotations=rotations(a.rope, a.head_dim, num_positions, self._precision.device),
        )

    def _layer(self, index: int) -> Layer:
        a = self._architecture
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        heads_size, kv_size = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        qkv, qkv_bias = self._stacked(
            attention,
            {"q_proj": heads_size, "k_proj": kv_size, "v_proj": kv_size},
            a.hidden_size,
            has_bias=a.has_qkv_bias,
        )
        input_norm, qkv = self._behind_norm(prefix + "input_layernorm.weight", qkv)
        gate_up, gate_up_bias = self._stacked(
            mlp,
            {"gate_proj": a.intermediate_size, "up_proj": a.intermediate_size},
            a.hidden_size,
            has_bias=a.has_mlp_bias,
        )
        mlp_norm, gate_up = self._behind_norm(prefix + "post_attention_layernorm.weight", gate_up)
        output = self._stacked(
            attention, {"o_proj": a.hidden_size}, heads_size, has_bias=a.has_output_bias
        )
        down = self._stacked(
            mlp, {"down_proj": a.hidden_size}, a.intermediate_size, has_bias=a.has_mlp_bias
        )
        return Layer(
            input_norm=input_norm,
            qkv=self._precision.linear(qkv, qkv_bias),
            qk_norm=self._qk_norm(attention) if a.has_qk_norm else None,
            output=self._adding_to_hidden(*output),
            mlp_norm=mlp_norm,
            gate_up=self._precision.linear(gate_up, gate_up_bias),
            down=self._adding_to_hidden(*down),
        )

    def _stacked(
        self, prefix: str, outputs: dict[str, int], inputs: int, *, has_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of several products of the same rows, as one."""
        weights, biases = [], []
        for name, size in outputs.items():
            weight = self._checkpoint.tensor(f"{prefix}{name}.weight", size, inputs)
            weights.append(self._interleaved(weight, name))
            if has_bias:
                bias = self._checkpoint.tensor(f"{prefix}{name}.bias", size)
                biases.append(self._interleaved(bias, name))
        return torch.cat(weights), torch.cat(biases) if has_bias else None

    def _interleaved(self, tensor: Tensor, name: str) -> Tensor:
        if name not in ("q_proj", "k_proj"):
            return tensor
        return interleave_heads(tensor, self._architecture.head_dim)

    def _behind_norm(self, name: str, weight: Tensor) -> tuple[Tensor | None, Tensor]:
        """The norm's gain, None when it is in the weight, and the weight."""
        gain = self._checkpoint.tensor(name, self._architecture.hidden_size)
        if self._basis is None:
            return self._precision.vector(gain), weight
        return None, self._basis.reading(weight, gain)

    def _adding_to_hidden(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if self._basis is not None:
            weight = self._basis.writing(weight)
            bias = None if bias is None else self._basis.rotate(bias)
        return self._precision.linear(weight, bias)

    def _embedding(self, embedding: Tensor) -> Tensor:
        """A copy in the file's own type, so that the mapped file can be let go."""
        if self._basis is not None:
            return self._basis.rotate(embedding).to(embedding.dtype)
        return embedding.clone().to(self._precision.device)

    def _qk_norm(self, prefix: str) -> Tensor:
        """The gains of all query heads, then of all key heads: [heads + kv_heads, head_dim]."""
        a = self._architecture
        gains = []
        for name, heads in (("q_norm", a.num_heads), ("k_norm", a.num_kv_heads)):
            gain = self._checkpoint.tensor(f"{prefix}{name}.weight", a.head_dim)
            gains.append(interleave_heads(gain, a.head_dim).expand(heads, -1))
        return self._precision.vector(torch.cat(gains))
