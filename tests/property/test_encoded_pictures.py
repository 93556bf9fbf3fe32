"""Whatever an encoder writes passes, and whatever anybody writes is judged in bounded time."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.picture import PictureError, read_picture_header
from gateway.wire.picture_body import check_picture_body
from tests.fakes.jpeg_segments import repeated_scan
from tests.fakes.pictures import noise

pytestmark = pytest.mark.property

BASE = [cv2.imencode(".jpg", noise(40, 30), [cv2.IMWRITE_JPEG_PROGRESSIVE, p])[1] for p in (0, 1)]
PNG = cv2.imencode(".png", noise(40, 30))[1]
pictures = st.sampled_from([each.tobytes() for each in (*BASE, PNG)])


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    seed=st.none() | st.integers(0, 9),
    is_grey=st.booleans(),
    progressive=st.integers(0, 1),
    optimised=st.integers(0, 1),
    quality=st.integers(1, 100),
    restart_interval=st.sampled_from([0, 1, 7]),
)
def test_what_an_encoder_writes_passes(
    width: int,
    height: int,
    seed: int | None,
    is_grey: bool,
    progressive: int,
    optimised: int,
    quality: int,
    restart_interval: int,
) -> None:
    solid = np.full((height, width, 3), 200, np.uint8)
    picture = solid if seed is None else noise(width, height, seed)
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive, cv2.IMWRITE_JPEG_OPTIMIZE, optimised]
    options += [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, restart_interval]
    done, data = cv2.imencode(".jpg", picture[..., 0] if is_grey else picture, options)
    assert done
    encoded = data.tobytes()
    check_picture_body(encoded, read_picture_header(encoded))


@given(
    known=pictures,
    cut=st.integers(0, 5000) | st.none(),
    at=st.integers(0, 5000),
    patch=st.binary(max_size=4),
)
def test_who_begins_like_a_known_picture_is_judged_as_if_it_were_read(
    known: bytes, cut: int | None, at: int, patch: bytes
) -> None:
    header = read_picture_header(known)
    beginning = check_picture_body(known, header)
    other = (known[:at] + patch + known[at + len(patch) :])[:cut]
    if beginning is not None and beginning.fits(other):
        assert read_picture_header(other) == header
        assert check_picture_body(other, header) == beginning


@given(picture=pictures, at=st.integers(0, 5000), patch=st.binary(max_size=40))
def test_a_damaged_body_is_judged_without_any_other_error(
    picture: bytes, at: int, patch: bytes
) -> None:
    damaged = picture[:at] + patch + picture[at + len(patch) :]
    try:
        check_picture_body(damaged, read_picture_header(damaged))
    except PictureError:
        return


@given(picture=pictures, length=st.integers(0, 5000))
def test_a_body_cut_anywhere_is_judged_without_any_other_error(picture: bytes, length: int) -> None:
    try:
        check_picture_body(picture[:length], read_picture_header(picture[:length]))
    except PictureError:
        return


@given(count=st.integers(100, 400), junk=st.binary(max_size=12))
def test_junk_between_scans_hides_none_from_the_count(count: int, junk: bytes) -> None:
    """Junk without a marker is skipped; one with a length may swallow at most what a decoder
    skips too."""
    data = repeated_scan(BASE[1].tobytes(), count, before=junk.replace(b"\xff", b""))
    with pytest.raises(PictureError, match="too many scans"):
        check_picture_body(data, read_picture_header(data))
