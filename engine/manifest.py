"""What a model is: files, pipeline, and how pictures become its input.

The catalogue's entries and the TOML file beside a user's own model both decode to a
:class:`Manifest`; the host sends it to the worker as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a picture becomes the network's input: value = (channel - mean) * scale.

    ``width`` and ``height`` are pixels of the network's input. ``fit`` is ``letterbox`` (keep the
    aspect ratio, pad right and bottom), ``stretch`` or ``centre_crop`` (resize the short side by
    ``1 / crop_fraction``, cut the middle). Channel order is RGB, layout NCHW float32.
    """

    width: int
    height: int
    fit: str = "letterbox"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    pad_value: int = 0
    crop_fraction: float = 0.875
    interpolation: str = "linear"  # linear | cubic | area


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of one model, with absolute paths once it is resolved by the store.

    ``pipeline`` is ``module:factory``. ``options`` belongs to the pipeline (thresholds, top-k).
    """

    name: str
    version: str = "1"
    pipeline: str = "pipelines.registry:build"
    kind: str = ""  # which of the registry's pipelines: faces, classify, detect
    files: dict[str, str] = {}  # role ("model") -> path
    input: InputSpec | None = None
    labels: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    licence: str = ""
    description: str = ""
