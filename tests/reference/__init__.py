"""Bare ONNX Runtime loops that the pipelines are held against; they import nothing of ours."""
