"""Engine configuration: frozen values, validated when built, no environment reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

VARIANTS = ("fp32", "fp16", "int8")  # precisions that one version may be served in
WEIGHTS = ("fp32", "bf16", "int8")  # precisions of a language model, the dearest first
MAX_CUDA_STREAMS = 8  # each is a copy of the model on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfig:
    """How a model uses a CUDA device. ``memory_limit_mb`` bounds ONNX Runtime's arena, not what
    cuDNN and TensorRT take beside it; 0: no limit."""

    device_id: int = 0
    memory_limit_mb: int = 0
    stream_priority: int = 0  # CUDA's: lower goes first
    tensorrt_fp16: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How one model is served.

    ``batch_timeout_millis`` is the batching window from the first item of a batch.
    ``prefetch_count`` is how many batches may wait, prepared, behind the running one, per worker.
    ``threads`` = 0 divides the container's CPU quota between the workers.

    ``workers`` is a fixed number while ``max_workers`` is 0; otherwise there are between
    ``min_workers`` and ``max_workers``: one more when items have waited for
    ``scale_queue_age_millis``. A worker whose own memory reaches ``max_worker_memory_mb``, or that
    has run for ``max_worker_age_s``, is replaced without losing an item (0 = never).

    ``versions``, ``variants``, ``watch_s`` and ``trial_s`` say which of the model's versions
    serve and how one follows another (docs/models.md).
    """

    workers: int = 1
    min_workers: int = 1
    max_workers: int = 0  # 0: no scaling
    scale_queue_age_millis: float = 50.0
    max_worker_memory_mb: int = 0
    max_worker_age_s: float = 0.0
    versions: tuple[str, ...] = ("latest",)  # or ("all",), or numbers
    variants: tuple[str, ...] = ("fp32",)  # best first; each step of pressure takes the next
    watch_s: float = 0.0  # between two looks at the model's files; 0: reload on request only
    trial_s: float = 30.0  # a new version is compared with the one before; 0: never
    max_batch_size: int = 8
    batch_timeout_millis: float = 5.0
    max_concurrent_requests: int = 1024
    execution_providers: tuple[str, ...] = ("CPUExecutionProvider",)
    gpu_device_id: int = 0
    gpu_memory_limit_mb: int = 0
    cuda_streams: int = 1  # sessions per worker, each with its own stream and thread
    cuda_stream_priority: int = 0
    tensorrt_fp16: bool = False
    prefetch_count: int = 1
    threads: int = 0
    prepare_threads: int = 1
    start_timeout_s: float = 120.0
    # A worker that holds a batch and is silent for 20 times as long as usual is restarted; never
    # before stall_floor_s, always after stall_timeout_s.
    stall_floor_s: float = 5.0
    stall_timeout_s: float = 60.0
    max_attempts: int = 2  # runs of an item whose worker dies; 1: no retry
    run_timeout_s: float = 120.0  # from a worker's first taking an item to its answer
    max_item_bytes: int = 8 * 1024 * 1024
    slab_bytes: int = 64 * 1024 * 1024
    max_output_bytes: int = 16 * 1024 * 1024
    max_restarts: int = 10  # within restart_window_s, then the circuit opens
    restart_window_s: float = 60.0

    def __post_init__(self) -> None:
        _at_least(self, 1, "workers", "max_batch_size", "max_concurrent_requests")
        _at_least(self, 1, "prepare_threads", "max_item_bytes", "max_output_bytes", "max_restarts")
        _at_least(self, 0, "batch_timeout_millis", "prefetch_count", "threads")
        _at_least(self, 0, "max_worker_memory_mb", "max_worker_age_s", "max_workers")
        _at_least(self, 1, "min_workers", "max_attempts")
        if self.max_workers and self.min_workers > self.max_workers:
            raise ValueError(
                f"min_workers must be <= max_workers ({self.max_workers}), got {self.min_workers}"
            )
        _at_least(self, 0, "watch_s", "trial_s")
        self._check_versions()
        if not self.execution_providers:
            raise ValueError("execution_providers must name at least one provider")
        self._check_gpu()
        for name in (
            *("start_timeout_s", "stall_floor_s", "stall_timeout_s", "restart_window_s"),
            *("scale_queue_age_millis", "run_timeout_s"),
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.slab_bytes < self.max_item_bytes:
            raise ValueError(
                f"slab_bytes ({self.slab_bytes}) must be >= max_item_bytes ({self.max_item_bytes})"
            )

    def _check_gpu(self) -> None:
        _at_least(self, 0, "gpu_device_id", "gpu_memory_limit_mb")
        _at_least(self, 1, "cuda_streams")
        if self.cuda_streams > MAX_CUDA_STREAMS:
            got = self.cuda_streams
            raise ValueError(f"cuda_streams must be <= {MAX_CUDA_STREAMS}, got {got}")
        accelerator = self.execution_providers[0]
        if self.gpu != GpuConfig() or self.cuda_streams > 1:
            names = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
            if accelerator not in names:
                raise ValueError(
                    f"execution_providers must begin with {' or '.join(names)} for the options of "
                    f"a GPU, got {accelerator}"
                )
        if self.tensorrt_fp16 and accelerator != "TensorrtExecutionProvider":
            raise ValueError(f"tensorrt_fp16 needs TensorrtExecutionProvider, got {accelerator}")

    def _check_versions(self) -> None:
        words = {"latest", "all"} & set(self.versions)
        is_one_word = bool(words) and len(self.versions) == 1
        are_numbers = bool(self.versions) and all(each.isdecimal() for each in self.versions)
        if not is_one_word and not are_numbers:
            raise ValueError(f"versions must be latest, all or numbers, got {self.versions}")
        if len(set(self.versions)) < len(self.versions):
            raise ValueError(f"versions must differ, got {self.versions}")
        if not self.variants or not set(self.variants) <= set(VARIANTS):
            raise ValueError(f"variants must be of {', '.join(VARIANTS)}, got {self.variants}")

    @property
    def gpu(self) -> GpuConfig:
        """What a session needs to know of the above."""
        return GpuConfig(
            device_id=self.gpu_device_id,
            memory_limit_mb=self.gpu_memory_limit_mb,
            stream_priority=self.cuda_stream_priority,
            tensorrt_fp16=self.tensorrt_fp16,
        )

    @property
    def first_workers(self) -> int:
        """How many workers there are at the start."""
        return self.min_workers if self.max_workers else self.workers

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return self.max_workers or self.workers


def _at_least(config: ModelConfig | LlmConfig | UpstreamConfig, bound: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value < bound:
            raise ValueError(f"{name} must be >= {bound}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmConfig:
    """How a language model is served; names as in the field. Times in milliseconds where named.

    ``weights`` is ``auto`` (int8 on CPU, bf16 on CUDA), ``fp32``, ``bf16`` or ``int8``;
    ``cheaper_weights`` is what steps run with under pressure, empty: the same.
    ``kv_cache_bytes`` = 0 takes ``kv_memory_fraction`` of the memory that is free after loading.
    ``max_step_ms`` caps a step while others decode; ``min_chunk_tokens`` of prefill always go
    along; ``max_wait_ms`` is the ageing bound of the lowest class. ``min_rate`` (tokens/s, 0 =
    off) caps how many sequences run at once. ``preempt_ratio`` is the share of slots that more
    urgent requests may take from running ones per ``scheduler_interval`` milliseconds, and a
    sequence is preempted at most ``max_preemptions`` times.
    """

    device: str = "auto"
    weights: str = "auto"
    cheaper_weights: str = ""
    threads: int = 0
    max_batch_size: int = 32
    preempt_ratio: float = 0.3
    scheduler_interval: float = 50.0
    cache_block_size: int = 16
    max_seq_length: int = 4096
    fused_attention: bool = True
    zero_copy_fallback: bool = True
    kv_memory_fraction: float = 0.4
    kv_cache_bytes: int = 0
    prefix_cache: bool = True
    max_step_ms: float = 50.0
    min_chunk_tokens: int = 16
    max_wait_ms: float = 10_000.0
    min_rate: float = 0.0
    max_preemptions: int = 3
    speculative_tokens: int = 4  # 0 = off
    max_waiting: int = 1024
    max_prompt_bytes: int = 1024 * 1024
    start_timeout_s: float = 300.0
    stall_timeout_s: float = 60.0
    max_restarts: int = 10
    restart_window_s: float = 60.0
    content_filter: tuple[str, ...] = ()  # regular expressions
    content_filter_action: str = "redact"  # redact | end

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_batch_size", "cache_block_size", "max_seq_length")
        _at_least(self, 1, "min_chunk_tokens", "max_waiting", "max_prompt_bytes")
        _at_least(self, 0, "threads", "kv_cache_bytes", "min_rate", "max_preemptions")
        _at_least(self, 0, "speculative_tokens")
        self._check_weights()
        if not 0.0 <= self.preempt_ratio <= 1.0:
            raise ValueError(f"preempt_ratio must be in 0..1, got {self.preempt_ratio}")
        if not 0.0 < self.kv_memory_fraction <= 0.95:
            got = self.kv_memory_fraction
            raise ValueError(f"kv_memory_fraction must be above 0 and at most 0.95, got {got}")
        for name in ("scheduler_interval", "max_step_ms", "max_wait_ms", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.content_filter_action not in ("redact", "end"):
            raise ValueError(
                f"content_filter_action must be redact or end, got {self.content_filter_action!r}"
            )

    def _check_weights(self) -> None:
        if self.weights not in ("auto", *WEIGHTS):
            raise ValueError(f"weights must be auto, fp32, bf16 or int8, got {self.weights!r}")
        if not self.cheaper_weights:
            return
        got = f"got {self.cheaper_weights!r}"
        if self.cheaper_weights not in WEIGHTS:
            raise ValueError(f"cheaper_weights must be bf16 or int8, {got}")
        if self.weights == "auto":
            raise ValueError("cheaper_weights needs weights = fp32 or bf16: name the weights")
        if WEIGHTS.index(self.cheaper_weights) <= WEIGHTS.index(self.weights):
            raise ValueError(f"cheaper_weights must be cheaper than {self.weights!r}, {got}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """A model that another server with OpenAI's API runs.

    ``url`` is where the API begins (``http://host:8000/v1``), ``model`` the name there. The
    ``api_key`` is sent as a bearer token and never printed. ``dialect`` says which sampling
    options the server knows beyond OpenAI's: ``openai``, ``vllm`` or ``llamacpp``.

    At most ``max_concurrent_requests`` run there at once, over as many connections; others wait.
    ``first_token_timeout_s`` counts from sending the request, ``idle_timeout_s`` between two
    pieces of an answer, ``total_timeout_s`` all attempts. An attempt that failed before its first
    token is repeated, at most ``max_retries`` times and only when the server asks to wait no
    longer than ``max_retry_wait_s``. Reading pauses while ``max_unreleased`` pieces of an answer
    have not been released to its reader.
    """

    url: str
    model: str
    version: str = "1"
    api_key: str = field(default="", repr=False)
    dialect: str = "openai"
    max_concurrent_requests: int = 32
    max_waiting: int = 1024
    max_prompt_bytes: int = 1024 * 1024
    max_answer_bytes: int = 8 * 1024 * 1024  # as received, envelopes included
    max_unreleased: int = 256
    completion_max_tokens: int = 1024  # of a raw prompt's answer when the caller says nothing
    start_timeout_s: float = 30.0
    probe_interval_s: float = 5.0
    connect_timeout_s: float = 5.0
    first_token_timeout_s: float = 60.0
    idle_timeout_s: float = 30.0
    total_timeout_s: float = 600.0
    max_retries: int = 2
    max_retry_wait_s: float = 5.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be like http://host:8000/v1, got {self.url!r}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("url must have no user, query or fragment; the key is api_key")
        if not self.model:
            raise ValueError("model must be the name that the server at url knows")
        if self.dialect not in ("openai", "vllm", "llamacpp"):
            raise ValueError(f"dialect must be openai, vllm or llamacpp, got {self.dialect!r}")
        _at_least(self, 1, "max_concurrent_requests", "max_waiting", "max_prompt_bytes")
        _at_least(self, 1, "max_answer_bytes", "max_unreleased", "completion_max_tokens")
        _at_least(self, 0, "max_retries", "max_retry_wait_s")
        for name in ("start", "connect", "first_token", "idle", "total"):
            if not getattr(self, f"{name}_timeout_s") > 0:
                raise ValueError(f"{name}_timeout_s must be > 0")
        if not self.probe_interval_s > 0:
            raise ValueError("probe_interval_s must be > 0")
