"""One module per kind of download, each with ``convert(source: Path, target: Path) -> None``,
which turns the downloaded file into what the engine loads: an ONNX file with a free batch
dimension, or the folder of a language model.

``onnx`` and ``gguf`` are imported here and nowhere else.
"""
