"""Pictures on their way out: what a decoder gets back, when it can have it, and where on the clock it lies."""

from __future__ import annotations

import io
import itertools
import re
from fractions import Fraction

import av
import numpy as np
import pytest

from streamsynth.codecs import Payload, VideoEncoder, VideoFormat, open_video_encoder
from streamsynth.codecs.pictures import TICKS
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.testing.paint import COLOURS, Painted, paint, read_picture
from streamsynth.testing.sine import sine

FPS, WIDTH, HEIGHT = 16, 128, 128
MIB = 1 << 20


def pictures(first: int, count: int) -> np.ndarray:
    said = (Painted(frame=first + k, prompt_version=2, chunk=5, epoch=1, colour=COLOURS["green"]) for k in range(count))
    return np.stack([paint(WIDTH, HEIGHT, each, 3) for each in said])


def encoder(name: VideoFormat = VideoFormat.M4S, payload_bytes: int = MIB) -> VideoEncoder:
    return open_video_encoder(name, width=WIDTH, height=HEIGHT, fps=FPS, payload_bytes=payload_bytes)


def decoded(stream: bytes) -> list[tuple[int, bool, Painted]]:
    """Ticks, whether it is a keyframe, and what each picture says."""
    with av.open(io.BytesIO(stream)) as container:
        frames = list(container.decode(video=0))
    return [(frame.pts, bool(frame.key_frame), read_picture(frame.to_ndarray(format="rgb24"))) for frame in frames]


def joined(payloads: list[Payload]) -> bytes:
    return b"".join(payload.data for payload in payloads)


def test_the_last_picture_of_a_chunk_decodes_before_the_next_chunk_exists() -> None:
    stream = encoder()
    sent = stream.header()
    for chunk in range(3):
        sent += joined(stream.encode(pictures(12 * chunk, 12), 12 * chunk, keyframe=chunk != 1))
        seen = decoded(sent)
        assert [painted.frame for _, _, painted in seen] == list(range(12 * chunk + 12))
        assert [ticks for ticks, _, _ in seen] == [k * TICKS for k in range(12 * chunk + 12)]
    assert [k for k, (_, key, _) in enumerate(seen) if key] == [0, 24]
    assert decoded(sent + stream.trailer()) == seen


def test_the_mime_names_the_profile_and_level_of_the_stream_itself() -> None:
    stream = encoder()
    header = stream.header()
    found = re.fullmatch(r'video/mp4; codecs="avc1\.([0-9a-f]{6})"', stream.mime)
    assert found
    assert bytes.fromhex(found[1]) in header


def test_colours_come_back_and_are_tagged() -> None:
    stream = encoder()
    sent = stream.header() + joined(stream.encode(pictures(0, 3), 0, keyframe=True))
    with av.open(io.BytesIO(sent)) as container:
        context = container.streams.video[0].codec_context
        assert (context.color_range, context.colorspace, context.pix_fmt) == (1, 1, "yuv420p")
    for name in VideoFormat:
        if name is not VideoFormat.RAW:
            one = encoder(name)
            data = one.header() + one.encode(pictures(7, 1), 7, keyframe=True)[0].data
            assert np.allclose(decoded(data)[0][2].colour, COLOURS["green"], atol=4)


def test_a_chunk_beyond_a_payload_is_several_that_join_without_a_seam() -> None:
    whole, cut = encoder(), encoder(payload_bytes=2000)
    one, several = (each.encode(pictures(0, 12), 0, keyframe=True) for each in (whole, cut))
    assert len(one) == 1 and len(several) > 1
    assert [payload.first_frame for payload in several] == list(
        np.cumsum([0, *(payload.frames for payload in several)])[:-1]
    )
    assert sum(payload.frames for payload in several) == 12
    assert decoded(cut.header() + joined(several)) == decoded(whole.header() + joined(one))


def test_dropped_pictures_leave_no_hole_and_the_rest_keep_their_place() -> None:
    stream = encoder()
    sent = stream.header() + joined(stream.encode(pictures(0, 4), 0, keyframe=True))
    sent += joined(stream.encode(pictures(9, 3), 9, keyframe=True))
    seen = decoded(sent)
    assert [painted.frame for _, _, painted in seen] == [0, 1, 2, 3, 9, 10, 11]
    # The first picture after the gap is shown for its whole length.
    assert [ticks // TICKS for ticks, _, _ in seen] == [0, 1, 2, 3, 4, 10, 11]


@pytest.mark.parametrize("name", [VideoFormat.JPEG, VideoFormat.RAW])
def test_a_picture_a_payload_in_the_formats_without_a_container(name: VideoFormat) -> None:
    stream = encoder(name)
    payloads = stream.encode(pictures(5, 3), 5, keyframe=False)
    assert [(payload.first_frame, payload.frames) for payload in payloads] == [(5, 1), (6, 1), (7, 1)]
    assert stream.header() == stream.trailer() == b""
    if name is VideoFormat.RAW:
        assert payloads[0].data == pictures(5, 1).tobytes()
    else:
        assert [decoded(payload.data)[0][2].frame for payload in payloads] == [5, 6, 7]


def test_an_encoder_that_fails_says_so() -> None:
    """V42: never a clean end."""
    with pytest.raises(StreamSynthError) as failed:
        encoder().encode(np.zeros((1, 7, 7, 3), np.uint8), 0, keyframe=True)
    assert failed.value.code is ErrorCode.ENCODER_FAILED


def test_sound_runs_beside_the_pictures_on_one_clock_without_a_seam() -> None:
    """V34, V35, V37, V38: one encoder, its priming skipped, whatever becomes of pictures; the tone is in its place."""
    rate, seconds = 24_000, 6
    stream = open_video_encoder(
        VideoFormat.M4S, width=WIDTH, height=HEIGHT, fps=FPS, payload_bytes=MIB, sample_rate=rate
    )
    assert stream.mime.endswith(',mp4a.40.2"')
    sent = stream.header()
    for chunk in range(seconds * FPS // 12):
        start = chunk * 12 * rate // FPS
        samples = 12 * rate // FPS
        # Silence but for a tone that begins with the picture of second 3.
        heard = sine(start, samples) * (np.arange(start, start + samples) >= 3 * rate)
        first = 12 * chunk + (6 if chunk == 2 else 0)  # Half of a chunk's pictures are dropped.
        shown = pictures(first, 12 * chunk + 12 - first)
        sent += joined(stream.encode(shown, first, keyframe=chunk % 4 == 0, sound=heard.astype(np.float32)))
        assert [painted.frame for _, _, painted in decoded(sent)][-1] == 12 * chunk + 11
    sent += stream.trailer()
    with av.open(io.BytesIO(sent)) as container:
        frames = list(container.decode(audio=0))
    times = [frame.pts * frame.time_base for frame in frames]
    assert all(later - before == Fraction(1024, rate) for before, later in itertools.pairwise(times))
    samples = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    began = float(times[0]) + np.flatnonzero(np.abs(samples) > 0.1)[0] / rate
    assert abs(began - 3.0) < 1 / (2 * FPS)
    assert len(samples) >= seconds * rate
    assert np.abs(np.diff(samples)).max() < 0.2  # A click would be a jump: the tone itself moves by 0.06 at most.
