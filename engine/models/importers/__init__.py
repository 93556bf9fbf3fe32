"""One module per kind of download, each with ``convert(source: Path, target: Path) -> None``,
which turns the downloaded file into an ONNX file with a free batch dimension.

``onnx`` is imported here and nowhere else.
"""
