"""Sources against real decoders: clips made on the spot, pictures, devices that are not there."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Generator
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from gateway.client import SourceError, frames_from_bytes, open_source
from gateway.client.capture import ClipSource, Decoded, Encoded, LiveSource
from gateway.client.frames import CapturedFrame, FrameSource, PictureLimits
from gateway.client.sources import _shown
from tests.fakes.stream_server import picture

pytestmark = pytest.mark.integration

FRAMES = 20
FPS = 25


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty grey frames of 64x48 at 25 fps, each brighter than the one before."""
    path = tmp_path_factory.mktemp("clips") / "grey.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.time_base = Fraction(1, FPS)
        for number in range(FRAMES):
            image = np.full((48, 64, 3), number * 10, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


async def take(source: FrameSource, limit: int = 1000) -> list[CapturedFrame]:
    frames: list[CapturedFrame] = []
    iterator = aiter(source)
    async for frame in iterator:
        frames.append(frame)
        if len(frames) == limit:
            break
    await iterator.aclose()  # type: ignore[attr-defined]  # ours are async generators
    return frames


def brightness(frame: CapturedFrame) -> float:
    image = cv2.imdecode(np.frombuffer(frame.jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return float(image.mean())


async def test_clip_yields_every_frame_when_it_is_not_live(clip: Path) -> None:
    source = open_source(clip, realtime=False)
    assert not source.is_live
    frames = await take(source)
    assert len(frames) == FRAMES
    assert [(frame.width, frame.height) for frame in frames] == [(64, 48)] * FRAMES
    assert [frame.media_time_s for frame in frames] == pytest.approx(
        [number / FPS for number in range(FRAMES)]
    )
    levels = [brightness(frame) for frame in frames]
    assert levels == pytest.approx([number * 10 for number in range(FRAMES)], abs=6)


async def test_live_clip_keeps_its_schedule(clip: Path) -> None:
    started = time.monotonic()
    frames = await take(open_source(str(clip)))
    assert time.monotonic() - started >= (FRAMES - 1) / FPS
    gaps_us = {round((frame.t_us - frames[0].t_us) * FPS / 1e6) for frame in frames}
    assert gaps_us <= set(range(FRAMES))
    assert all(started * 1e6 <= frame.t_us <= time.monotonic() * 1e6 for frame in frames)


async def test_live_clip_skips_what_its_reader_missed(clip: Path) -> None:
    source = open_source(clip)
    seen = 0
    async for _ in source:
        seen += 1
        if seen == 1:
            await asyncio.sleep(0.4)
    assert isinstance(source, ClipSource)
    assert source.num_skipped == FRAMES - seen >= 6


async def test_clip_is_thinned_scaled_and_looped(clip: Path) -> None:
    source = open_source(clip, realtime=False, fps=5, max_width=32, loop=True)
    frames = await take(source, limit=10)
    assert [(frame.width, frame.height) for frame in frames] == [(32, 24)] * 10
    times = [frame.media_time_s for frame in frames]
    assert times == pytest.approx([number / 5 for number in range(10)], abs=0.051)
    looped = await take(open_source(clip, realtime=False, loop=True), limit=FRAMES + 2)
    assert brightness(looped[FRAMES]) == pytest.approx(brightness(looped[0]), abs=1)
    assert looped[FRAMES].media_time_s == pytest.approx(FRAMES / FPS)


async def test_stopped_source_ends(clip: Path) -> None:
    source = open_source(clip, loop=True)
    seen = 0
    async for _ in source:
        seen += 1
        source.stop()
    assert seen == 1


async def test_pictures_are_live_only_at_a_rate(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(picture())
    for spec in (tmp_path, tmp_path / "a.jpg", [picture()]):
        assert not open_source(spec).is_live
        assert open_source(spec, fps=25.0).is_live
    assert [frame.media_time_s for frame in await take(open_source(tmp_path))] == [None]


async def test_pictures_come_from_bytes_files_and_folders(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.JPEG", "notes.txt"):
        (tmp_path / name).write_bytes(picture() + name.encode())
    from_folder = await take(open_source(tmp_path, realtime=False))
    assert [frame.jpeg[-4:] for frame in from_folder] == [b"JPEG", b".jpg"]
    from_file = await take(open_source(tmp_path / "b.jpg", realtime=False))
    assert from_file[0].jpeg == picture() + b"b.jpg"
    mixed = await take(open_source([picture(9, 7), tmp_path / "b.jpg"], fps=200))
    assert [(frame.width, frame.height) for frame in mixed] == [(9, 7), (53, 37)]


async def test_paced_pictures_skip_what_their_reader_missed() -> None:
    source = frames_from_bytes([picture()] * 100, fps=200, loop=False)
    times: list[float] = []
    async for frame in source:
        assert frame.media_time_s is not None
        times.append(frame.media_time_s)
        if len(times) == 1:
            await asyncio.sleep(0.2)
    assert times == sorted(set(times))
    assert times[-1] == pytest.approx(99 / 200)
    assert source.num_skipped == 100 - len(times) >= 30


@pytest.mark.parametrize("spec", ["missing.mp4", "/nowhere/at/all", [Path("missing.jpg")]])
async def test_missing_file_is_named(spec: str) -> None:
    with pytest.raises(SourceError, match=r"missing|nowhere"):
        await take(open_source(spec, realtime=False))


async def test_file_that_is_no_video_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.mp4"
    path.write_text("not a video")
    for realtime in (True, False):
        with pytest.raises(SourceError, match=r"cannot read .*text\.mp4"):
            await take(open_source(path, realtime=realtime))


async def test_picture_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no")
    with pytest.raises(SourceError, match=r"bad\.jpg"):
        await take(open_source(tmp_path, realtime=False))
    with pytest.raises(SourceError, match="no pictures"):
        open_source([])
    (tmp_path / "bad.jpg").unlink()
    with pytest.raises(SourceError, match="no pictures"):
        open_source(tmp_path)


async def test_camera_that_is_not_there_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SourceError, match="cannot open camera 97"):
        await take(open_source("97"))
    assert capfd.readouterr().err == ""  # nor does OpenCV warn


async def test_rtsp_that_is_refused_is_named_without_its_password() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SourceError, match="refused") as caught:
        await take(open_source(f"rtsp://user:secret@127.0.0.1:{port}/cam"))
    assert "secret" not in str(caught.value)
    assert _shown("rtsp://u:p@h:1/a?b=c") == "rtsp://h:1/a"


@pytest.mark.parametrize("wrong", [{"fps": 0}, {"jpeg_quality": 0}, {"max_width": 1}])
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        open_source(0, **wrong)  # type: ignore[arg-type]


def encode(decoded: Decoded, _: PictureLimits) -> Encoded:
    return Encoded(b"%d" % decoded.picture, 1, 1)


async def test_newest_picture_of_a_live_source_wins_and_its_device_is_released() -> None:
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> Generator[Decoded, None, None]:
        try:
            for number in range(1_000_000):
                time.sleep(0.001)
                yield Decoded(number, number / 1000)
        finally:
            loop.call_soon_threadsafe(released.set)

    source = LiveSource(read, encode, name="fake")
    numbers: list[int] = []
    frames = aiter(source)
    async for frame in frames:
        numbers.append(int(frame.jpeg))
        assert time.monotonic() - frame.t_us / 1e6 < 5.0
        if len(numbers) == 3:
            break
        await asyncio.sleep(0.05)
    await frames.aclose()  # type: ignore[attr-defined]  # an async generator
    await asyncio.wait_for(released.wait(), 20.0)
    assert numbers[1] - numbers[0] > 5
    assert source.num_skipped > 5


async def test_live_source_ends_or_fails_after_its_last_picture() -> None:
    def read(fails: bool) -> Generator[Decoded, None, None]:
        yield Decoded(1, 0.0)
        if fails:
            raise SourceError("unplugged")

    assert [f.jpeg for f in await take(LiveSource(lambda: read(False), encode, name="x"))] == [b"1"]
    with pytest.raises(SourceError, match="unplugged"):
        await take(LiveSource(lambda: read(True), encode, name="x"))
