"""What a model is: files, pipeline, and how pictures become its input.

The catalogue's entries and the TOML file beside a user's own model both decode to a
:class:`Manifest`; the host sends it to the worker as JSON.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Pixels = Annotated[int, Meta(ge=1, le=8192)]


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a picture becomes the network's input: value = (channel - mean) * scale.

    ``width`` and ``height`` are pixels of the network's input. ``fit`` is ``letterbox`` (keep the
    aspect ratio, pad right and bottom), ``stretch`` or ``centre_crop`` (resize the short side by
    ``1 / crop_fraction``, cut the middle). Channel order is RGB, layout NCHW float32. Ranges are
    checked where a spec is decoded: in the store and in the worker.
    """

    width: Pixels
    height: Pixels
    fit: Literal["letterbox", "stretch", "centre_crop"] = "letterbox"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    pad_value: Annotated[int, Meta(ge=0, le=255)] = 0
    crop_fraction: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.875
    interpolation: Literal["linear", "cubic", "area"] = "linear"


PIPELINE_KINDS = ("faces", "classify", "detect")  # of ``pipelines.registry``


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of one model, with absolute paths once it is resolved by the store.

    ``pipeline`` is ``module:factory``. ``options`` belongs to the pipeline (thresholds, top-k).
    """

    name: str
    version: str = "1"
    pipeline: str = "pipelines.registry:build"
    kind: str = ""  # one of PIPELINE_KINDS, if the pipeline is the registry's
    files: dict[str, str] = {}  # role ("model") -> path
    input: InputSpec | None = None
    labels: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    licence: str = ""
    description: str = ""
