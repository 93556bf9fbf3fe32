"""Models that are files: an ONNX file and, beside it, a TOML file that says what it means.

``detector.onnx`` is described by ``detector.toml``; without one it is served as plain tensors.
A folder with a ``config.json`` is a language model as Hugging Face publishes them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from engine.did_you_mean import did_you_mean
from engine.manifest import PIPELINE_KINDS, InputSpec, Manifest
from engine.models.catalog import CHAT
from engine.models.errors import ManifestError, MissingModel
from engine.models.onnx_file import check_onnx_file

TENSORS_PIPELINE = "engine.onnx.tensors:build"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(.*)`")  # msgspec's words
_PIPELINE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TOML file's keys. Exactly one of ``kind`` (a pipeline of ours) and ``pipeline``
    (``my.module:Pipeline``) says how to serve the model.

    ``labels`` is a list of names or the name of a file beside the TOML file, with one name a line
    or a JSON list.
    """

    name: str | None = None
    version: str = "1"
    kind: str | None = None
    pipeline: str | None = None
    input: InputSpec | None = None
    labels: tuple[str, ...] | str = ()
    options: dict[str, Any] = {}
    licence: str = ""
    description: str = ""


def load_model_file(path: Path) -> Manifest:
    """Describe the ONNX file or folder at ``path``; every path in the answer is absolute.

    That the file is a whole ONNX model is checked for the pipelines that come along; a pipeline
    of one's own may make of it what it likes.

    Raises:
        MissingModel: there is no such file.
        ManifestError: the TOML file cannot be used, the text names it and the key; or the file
            is not an ONNX model.
    """
    path = path.absolute()
    if (path / "config.json").is_file():
        name = _checked_name(path.name, f"{path}: rename the folder, its name")
        return Manifest(name=name, kind=CHAT, files={"model": str(path)})
    if path.suffix != ".onnx":
        raise ManifestError(f"{path}: a model file ends in .onnx")
    if not path.is_file():
        raise MissingModel(f"there is no file {path}")
    files = {"model": str(path)}
    toml_path = path.with_suffix(".toml")
    if not toml_path.is_file():
        name = _checked_name(path.stem, f"{path}: rename the file, its stem")
        _check_network(path)
        return Manifest(name=name, pipeline=TENSORS_PIPELINE, kind="tensors", files=files)
    described = _read_description(toml_path)
    if described.pipeline in (None, TENSORS_PIPELINE):
        _check_network(path)
    pipeline = {} if described.pipeline is None else {"pipeline": described.pipeline}
    return Manifest(
        name=_checked_name(described.name or path.stem, f"{toml_path}: name"),
        version=described.version,
        kind=described.kind or "",
        files=files,
        input=described.input,
        labels=_read_labels(described.labels, toml_path),
        options=described.options,
        licence=described.licence,
        description=described.description,
        **pipeline,
    )


def read_label_file(path: Path) -> tuple[str, ...]:
    """Names from a JSON list (``.json``) or a text file with one a line.

    Raises:
        ValueError: not such a file.
    """
    text = path.read_text("utf-8")
    if path.suffix != ".json":
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    return msgspec.json.decode(text, type=tuple[str, ...])


def _check_network(path: Path) -> None:
    try:
        check_onnx_file(path)
    except (ValueError, OSError) as error:
        raise ManifestError(f"{path}: {error}") from error


def _read_description(toml_path: Path) -> Description:
    try:
        described = msgspec.convert(tomllib.loads(toml_path.read_text("utf-8")), Description)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{toml_path}: {error}") from error
    except msgspec.ValidationError as error:
        raise ManifestError(f"{toml_path}: {_name_key(str(error))}") from error
    for problem in _problems(described):
        raise ManifestError(f"{toml_path}: {problem}")
    return described


def _problems(described: Description) -> list[str]:
    """What msgspec's types cannot say, each starting with the key."""
    problems = []
    if (described.kind is None) == (described.pipeline is None):
        problems.append("kind or pipeline: exactly one of the two must be given")
    if described.kind is not None and described.kind not in PIPELINE_KINDS:
        problems.append(
            f"kind: must be one of {', '.join(PIPELINE_KINDS)}, got {described.kind!r}"
            f"{did_you_mean(described.kind, PIPELINE_KINDS)}"
        )
    if described.pipeline is not None and not _PIPELINE.fullmatch(described.pipeline):
        problems.append(f"pipeline: expected module:factory, got {described.pipeline!r}")
    return problems


def _read_labels(labels: tuple[str, ...] | str, toml_path: Path) -> tuple[str, ...]:
    if not isinstance(labels, str):
        return labels
    path = toml_path.parent / labels
    try:
        return read_label_file(path)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise ManifestError(f"{toml_path}: labels: cannot read {path}: {error}") from error


def _checked_name(name: str, where: str) -> str:
    if not _NAME.fullmatch(name):
        raise ManifestError(
            f"{where} must be letters, digits, '.', '_' or '-', 64 at most, got {name!r}"
        )
    return name


def _name_key(message: str) -> str:
    """``"Expected `int`, got `str` - at `$.input.width`"`` with the key in front."""
    text, _, location = message.partition(" - at ")
    key = location.strip("`").removeprefix("$").removeprefix(".")
    unknown = _UNKNOWN_KEY.fullmatch(text)
    if unknown is not None and not key:
        return (
            f"{unknown[1]}: is not known{did_you_mean(unknown[1], Description.__struct_fields__)}"
        )
    return f"{key}: {text}" if key else text
