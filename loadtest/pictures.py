"""Pre-encoded pictures for the benches: the generator must not pay for encoding."""

from __future__ import annotations

from pathlib import Path

import av
import cv2


def encoded_frames(
    clip: Path, *, width: int, height: int, count: int, quality: int = 85
) -> list[bytes]:
    """The first ``count`` frames of ``clip``, stretched to ``width`` x ``height``, as JPEG."""
    frames: list[bytes] = []
    with av.open(str(clip)) as container:
        container.streams.video[0].thread_count = 1
        for frame in container.decode(video=0):
            picture = cv2.resize(frame.to_ndarray(format="bgr24"), (width, height))
            ok, encoded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
            assert ok
            frames.append(encoded.tobytes())
            if len(frames) == count:
                break
    return frames
