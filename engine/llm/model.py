"""A language model over a paged K/V cache: rows of many sequences in, logits out, one pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import StartupError
from engine.llm.architecture import Architecture, read_architecture
from engine.llm.attention import PagedAttention
from engine.llm.decoder import Decoder
from engine.llm.kv_cache import HostBlocks, KvCache, bytes_per_block
from engine.llm.linear import is_int8_supported
from engine.llm.memory import free_memory
from engine.llm.packing import RowGroup, pack
from engine.llm.weights import Precision, load_decoder
from engine.workers.quota import available_cores, threads_per_worker

__all__ = ["HostBlocks", "LoadedModel", "PagedModel", "RowGroup", "load_model_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Weights in memory, no cache yet. ``weights`` is the precision in use: fp32, bf16, int8;
    ``cheaper`` the same model in a cheaper one, if that was asked for; ``max_seq_length`` is at
    most the context that the model was made for."""

    folder: Path
    decoder: Decoder
    cheaper: Decoder | None = None
    weights: str
    device: torch.device
    max_seq_length: int

    @property
    def architecture(self) -> Architecture:
        return self.decoder.architecture

    def bytes_per_block(self, block_size: int) -> int:
        """Memory of one block of ``block_size`` tokens, all layers."""
        return bytes_per_block(self.architecture, block_size, self.decoder.dtype)

    def memory_for_cache(self, fraction: float) -> int:
        """Bytes: this share of what is free on the device now, after loading."""
        return int(free_memory(self.device) * fraction)


def load_model_folder(
    path: Path,
    *,
    weights: str = "auto",
    cheaper_weights: str = "",
    device: str = "auto",
    threads: int = 0,
    max_seq_length: int | None = None,
) -> LoadedModel:
    """Load a Hugging Face folder. ``weights``, ``cheaper_weights`` and ``device`` as in
    ``LlmConfig``; ``threads`` 0 takes as many as the container may use. Sets torch's number of
    threads, and how MKL rounds, for the whole process.

    Raises:
        StartupError: the model or the combination is not supported, or a file is missing.
    """
    # With several threads a product's last bit depends on where its thread's buffer lies, and so
    # on the company, unless MKL is told otherwise before its first use. It costs no time.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    torch.set_num_threads(threads_per_worker(threads, 1, available_cores()))
    chosen = _device(device)
    architecture = read_architecture(path)
    length = min(max_seq_length or architecture.max_positions, architecture.max_positions)
    window = architecture.sliding_window
    if window is not None and window < length:
        raise StartupError(
            f"{path}: its attention slides over {window} tokens, which is not supported; "
            f"set max_seq_length to {window} at most"
        )
    name = _weights("weights", weights, chosen)

    def load(weights: str) -> Decoder:
        with torch.inference_mode():
            return load_decoder(path, architecture, _precision(weights, chosen), length)

    cheaper = cheaper_weights and _weights("cheaper_weights", cheaper_weights, chosen)
    return LoadedModel(
        folder=path,
        decoder=load(name),
        cheaper=load(cheaper) if cheaper else None,
        weights=name,
        device=chosen,
        max_seq_length=length,
    )


class PagedModel:
    """A loaded model with a cache of ``num_blocks`` blocks. One thread uses it.

    Block tables are the caller's: nothing here knows which block belongs to whom, so sequences
    may share blocks that none of them writes. Keys and values have one layout whatever weights
    computed them, in the type of the usual ones, so those may change between two steps.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        num_blocks: int,
        block_size: int,
        *,
        fused_attention: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = loaded.device
        self.vocabulary = loaded.architecture.vocabulary
        self.bytes_per_block = loaded.bytes_per_block(block_size)
        self._usual, self._cheaper = loaded.decoder, loaded.cheaper
        self._decoder = loaded.decoder
        with torch.inference_mode():
            self._cache = KvCache(
                loaded.architecture, num_blocks, block_size, loaded.decoder.dtype, loaded.device
            )
        self._attention = PagedAttention(loaded.architecture, self._cache, is_fused=fused_attention)

    def use_cheaper(self, is_on: bool) -> None:
        """With which weights the next ``execute`` computes.

        Raises:
            ValueError: the model was loaded without cheaper ones.
        """
        if self._cheaper is None:
            raise ValueError("the model has no cheaper weights")
        self._decoder = self._cheaper if is_on else self._usual

    @torch.inference_mode()
    def execute(self, groups: Sequence[RowGroup]) -> Tensor:
        """Run all groups in one pass: write their K/V, and return float32 logits [rows,
        vocabulary], group after group, the last ``num_logits`` tokens of each in order.

        Raises:
            torch.OutOfMemoryError: the step did not fit; nothing is lost, fewer groups may.
        """
        step = pack(groups, self.block_size, self.device)
        masks = self._attention.masks(step, self._decoder.dtype)

        def attend(layer: int, queries: Tensor, kv: Tensor) -> Tensor:
            self._cache.write(layer, step.slots, kv)
            return self._attention(layer, queries, step, masks)

        try:
            hidden = self._decoder.run(step.token_ids, step.positions, attend)
            return self._decoder.logits(hidden[step.logits_rows])
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # what is left is in pieces; give them back before a retry
            raise

    @torch.inference_mode()
    def copy_block(self, source: int, target: int) -> None:
        """Make block ``target`` hold what ``source`` holds."""
        self._cache.copy_block(source, target)

    @torch.inference_mode()
    def swap_out(self, blocks: Sequence[int]) -> HostBlocks:
        """Copy blocks to host memory, overlapping the next step; they may be reused at once."""
        return self._cache.swap_out(blocks)

    @torch.inference_mode()
    def swap_in(self, handle: HostBlocks, blocks: Sequence[int]) -> None:
        """Copy them back, into any blocks; the next ``execute`` sees them."""
        self._cache.swap_in(handle, blocks)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise StartupError(f"device must be auto, cpu or cuda, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StartupError(f"device {name!r} is not there: torch sees no CUDA device")
    return device


def _precision(weights: str, device: torch.device) -> Precision:
    dtype = torch.bfloat16 if weights == "bf16" else torch.float32
    return Precision(dtype=dtype, is_int8=weights == "int8", device=device)


def _weights(key: str, name: str, device: torch.device) -> str:
    if name == "auto":
        if device.type == "cuda":
            return "bf16"
        return "int8" if is_int8_supported() else "fp32"
    if name == "int8" and device.type != "cpu":
        raise StartupError(f"{key} = int8 is for the CPU; on this device use bf16 or fp32")
    if name == "int8" and not is_int8_supported():
        raise StartupError(f"{key} = int8 needs torch's x86 kernels; use fp32 here")
    return name
