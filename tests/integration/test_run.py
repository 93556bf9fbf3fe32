"""A run of ``clawstream stream`` against a scripted server: what it shows, writes, ends with."""

from __future__ import annotations

from functools import partial
from io import StringIO
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import typer
from rich.console import Console

from engine.types import Item
from gateway.client import FrameResult, StreamStatistics
from gateway.commands import run
from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.run import Listeners, RunOptions, RunOutcome, run_stream
from gateway.commands.stream import finish
from gateway.wire.codec import BinaryMessage
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway
from tests.fakes.stream_server import (
    Peer,
    StreamBooks,
    StreamServer,
    answer_later,
    picture,
    stream_server,
    welcome,
)

pytestmark = pytest.mark.integration

RATE = 30


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One second at 30 fps."""
    path = tmp_path_factory.mktemp("clips") / "grey.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(RATE):
            image = np.full((48, 64, 3), level, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(picture())
    return tmp_path


async def go(server: StreamServer, source: Path, **options: object) -> tuple[RunOutcome, str]:
    """Run to the end; also returns what was shown."""
    shown = StringIO()
    asked = RunOptions(url=server.url, source=str(source), model="m", **options)  # type: ignore[arg-type]
    outcome = await run_stream(asked, Console(file=shown), Listeners())
    try:
        finish(outcome, asked, Console(file=shown))
    except CommandError as error:
        return outcome, f"{shown.getvalue()}exit {int(error.code)}: {error}"
    except typer.Exit as ended:
        return outcome, f"{shown.getvalue()}exit {ended.exit_code}"
    return outcome, f"{shown.getvalue()}exit 0"


async def annotate(peer: Peer, frame: BinaryMessage) -> None:
    jpeg = bytes(cv2.imencode(".jpg", np.zeros((48, 64, 3), np.uint8))[1])
    await peer.result(frame, annotated=jpeg)


async def break_off(peer: Peer, frame: BinaryMessage) -> None:
    peer.socket.transport.abort()


async def test_pictures_are_all_sent_and_answered(pictures: Path) -> None:
    server = StreamServer()
    async with stream_server(server):
        outcome, shown = await go(server, pictures)
        single, _ = await go(server, pictures / "0.jpg")
    assert (outcome.statistics.results, single.statistics.results) == (3, 1)
    assert outcome.policy == "lossless"
    assert server.peers[0].streams[1].open.options.policy == "lossless"
    assert shown.endswith("exit 0")


async def test_clip_is_live_unless_told_otherwise(clip: Path) -> None:
    server = StreamServer()
    async with stream_server(server):
        outcome, _ = await go(server, clip)
    assert outcome.policy == "latest"
    assert outcome.statistics.sent > 0


async def test_a_clip_on_the_playout_clock_comes_evenly(clip: Path) -> None:
    def respond(item: Item) -> bytes:
        engine.delay_s = 0.0 if engine.delay_s else 0.025  # every other result takes longer
        return b"{}"

    engine = FakeEngine(respond=respond)
    results: list[FrameResult] = []
    listeners = Listeners(on_result=results.append)
    async with running_gateway(engine) as gateway:
        asked = RunOptions(
            url=gateway.url, source=str(clip), model="fake", policy="fifo", pace="playout"
        )
        outcome = await run_stream(asked, Console(file=StringIO()), listeners)
    assert outcome.failure is None
    assert outcome.statistics.receipts_add_up
    assert max(result.timing.pace for result in results) > 10_000
    assert [result.seq for result in results] == sorted(result.seq for result in results)


async def test_playout_of_pictures_that_may_not_be_dropped_is_refused(pictures: Path) -> None:
    server = StreamServer()
    async with stream_server(server):
        with pytest.raises(CommandError, match="policy lossless") as caught:
            await go(server, pictures, pace="playout")
    assert caught.value.code is ExitCode.USAGE


async def test_gateway_that_dies_before_the_last_answers_ends_with_4(pictures: Path) -> None:
    server = StreamServer()
    server.answer = answer_later

    async def die(peer: Peer, books: StreamBooks) -> None:
        peer.socket.transport.abort()

    server.end = die
    async with stream_server(server):
        outcome, shown = await go(server, pictures)
    assert outcome.statistics.dropped == {"disconnected": 3}
    assert shown.endswith(f"exit 4: {server.url}: the connection was lost, 3 frames unanswered")


async def test_gateway_that_dies_and_stays_away_ends_with_4(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_RECONNECT_S", 0.1)
    server = StreamServer()
    async with stream_server(server) as listening:

        async def die(peer: Peer, frame: BinaryMessage) -> None:
            listening.close(close_connections=False)
            await break_off(peer, frame)

        server.answer = die
        outcome, shown = await go(server, clip, policy="lossless")
    assert outcome.failure is not None
    assert outcome.failure.code is ExitCode.CANNOT_CONNECT
    assert "disconnected: connection lost" in shown
    assert "cannot reach" in shown.splitlines()[-1]


async def test_lossless_stream_that_lost_frames_on_the_way_ends_with_1(clip: Path) -> None:
    server = StreamServer()

    async def break_off_once(peer: Peer, frame: BinaryMessage) -> None:
        await (break_off(peer, frame) if len(server.peers) == 1 else peer.result(frame))

    server.answer = break_off_once
    async with stream_server(server):
        outcome, shown = await go(server, clip, policy="lossless")
    lost = outcome.statistics.dropped["disconnected"]
    assert "connected again" in shown
    assert shown.endswith(
        f"exit 1: {lost} of {RATE} frames were dropped in spite of policy lossless"
    )


async def test_video_of_a_lossless_run_has_length_and_rate_of_the_clip(
    clip: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.mp4"
    server = StreamServer()
    server.answer = annotate
    async with stream_server(server):
        outcome, shown = await go(server, clip, policy="lossless", out=out)
    assert outcome.num_written == RATE
    assert shown.endswith("exit 0")
    with av.open(str(out)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == RATE
        assert container.duration == av.time_base


async def test_model_that_annotates_nothing_is_an_error(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mp4"
    server = StreamServer()
    async with stream_server(server):
        _, shown = await go(server, pictures, out=out)
    assert "exit 1: " in shown
    assert "none of 3 results of model 'm' brought an annotated frame" in shown
    assert not out.exists()


async def test_level_that_makes_no_annotated_frames_is_told(pictures: Path, tmp_path: Path) -> None:
    server = StreamServer()
    server.greet = partial(welcome, service_level="no_extras")
    async with stream_server(server):
        _, shown = await go(server, pictures, out=tmp_path / "out.mp4")
    assert shown.startswith("the gateway's service level is no_extras\n")


async def test_video_that_cannot_be_written_still_shows_the_receipts(
    pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "gone" / "out.mp4"
    server = StreamServer()
    server.answer = annotate
    async with stream_server(server):
        outcome, shown = await go(server, pictures, out=out)
    assert outcome.failure is not None
    assert "receipts add up" in shown
    assert shown.endswith(f"exit 1: cannot write {out}: No such file or directory")


@pytest.fixture
def twin(clip: Path, tmp_path: Path) -> Path:
    """Another name of the clip."""
    path = tmp_path / "twin.mp4"
    path.hardlink_to(clip)
    return path


async def test_source_that_is_the_video_to_write_is_refused_and_kept(
    clip: Path, twin: Path
) -> None:
    server = StreamServer()
    server.answer = annotate
    async with stream_server(server):
        with pytest.raises(CommandError, match="is the source itself") as caught:
            await go(server, clip, policy="lossless", out=twin)
    assert caught.value.code is ExitCode.USAGE
    assert server.peers == []
    with av.open(str(clip)) as container:
        assert container.streams.video[0].frames == RATE


async def test_file_that_is_no_video_is_told_in_words(tmp_path: Path) -> None:
    text = tmp_path / "README.md"
    text.write_text("# A document\n")
    server = StreamServer()
    async with stream_server(server):
        with pytest.raises(CommandError) as caught:
            await go(server, text)
    assert caught.value.code is ExitCode.MISSING
    assert str(caught.value) == f"cannot read {text}: it is no video or picture that is known here"


async def test_model_that_is_not_served_is_told_with_those_that_are(pictures: Path) -> None:
    async with running_gateway(FakeEngine()) as gateway:
        asked = RunOptions(url=gateway.url, source=str(pictures), model="nope")
        with pytest.raises(CommandError) as caught:
            await run_stream(asked, Console(file=StringIO()), Listeners())
    assert caught.value.code is ExitCode.MISSING
    text = f"{gateway.url}: no model 'nope' is served there; those that are: fake"
    assert str(caught.value) == text


def test_ctrl_c_while_the_gateway_is_away_ends_with_130(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = CommandError(ExitCode.CANNOT_CONNECT, "the connection was lost")
    outcome = RunOutcome(
        statistics=StreamStatistics(),
        policy="latest",
        seconds=1.0,
        interrupted=True,
        num_written=0,
        failure=lost,
    )
    asked = RunOptions(url="ws://localhost", source=str(pictures), model="m")
    with pytest.raises(typer.Exit) as ended:
        finish(outcome, asked, Console(file=StringIO()))
    assert ended.value.exit_code == ExitCode.INTERRUPTED
    assert "error: the connection was lost" in capsys.readouterr().err
