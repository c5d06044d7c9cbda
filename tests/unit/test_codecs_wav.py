"""pcm and wav: the same samples, bare or behind one header."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
from decoded import decode, decode_with_soundfile, encode_all, residual, tone
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.codecs import AudioFormat, open_encoder, wav_header
from streamsynth.codecs.quantise import to_s16
from streamsynth.errors import ErrorCode, StreamSynthError


def test_a_live_header_says_that_the_sizes_are_unknown() -> None:
    """S5"""
    header = wav_header(24_000)
    assert len(header) == 44
    assert header[:4] + header[8:16] + header[36:40] == b"RIFFWAVEfmt data"
    assert struct.unpack_from("<I", header, 4) == struct.unpack_from("<I", header, 40) == (0xFFFFFFFF,)
    assert struct.unpack_from("<IHHIIHH", header, 16) == (16, 1, 1, 24_000, 48_000, 2, 16)


def test_a_finished_header_counts_every_byte() -> None:
    header = wav_header(48_000, channels=2, samples=10)
    assert struct.unpack_from("<I", header, 4) == (36 + 40,)
    assert struct.unpack_from("<I", header, 40) == (40,)
    assert struct.unpack_from("<HIIHH", header, 22) == (2, 48_000, 192_000, 4, 16)


def test_more_than_riff_can_count_is_refused() -> None:
    longest = (0xFFFFFFFE - 36) // 2
    assert len(wav_header(24_000, samples=longest)) == 44
    with pytest.raises(StreamSynthError, match=str(longest)) as raised:
        wav_header(24_000, samples=longest + 1)
    assert raised.value.code is ErrorCode.INVALID_VALUE


@settings(deadline=None, max_examples=60)
@given(cuts=st.lists(st.integers(0, 9_000), max_size=30), audio_format=st.sampled_from(["pcm", "wav"]))
def test_any_chunking_gives_the_bytes_of_one_call(cuts: list[int], audio_format: str) -> None:
    """S3, S7: only whole samples, one header, no trailer."""
    samples = np.random.default_rng(3).uniform(-1.2, 1.2, 9_000).astype(np.float32)
    encoder = open_encoder(AudioFormat(audio_format), source_rate=24_000)
    pieces = [encoder.encode(part) for part in np.split(samples, sorted(cuts))]
    assert [len(piece) % 2 for piece in pieces] == [0] * len(pieces)
    header = wav_header(24_000) if audio_format == "wav" else b""
    assert b"".join(pieces) + encoder.finish() == header + to_s16(samples).tobytes()
    assert encoder.samples == len(samples)


def test_the_header_comes_with_the_first_piece_and_once() -> None:
    """S2, S4, S5"""
    encoder = open_encoder(AudioFormat.WAV, source_rate=24_000)
    first, second = encoder.encode(tone(0.02, 24_000)), encoder.encode(tone(0.02, 24_000))
    assert first.startswith(b"RIFF")
    assert len(first) == 44 + 960
    assert len(second) == 960
    assert encoder.finish() == b""


def test_a_tone_cut_anywhere_comes_out_in_one_phase() -> None:
    """S2: what is left beside the tone is half a step of rounding."""
    samples = tone(1.0, 24_000)
    encoder = open_encoder(AudioFormat.PCM, source_rate=24_000)
    streamed = encode_all(encoder, np.split(samples, [1, 2, 7, 500, 501, 4_063, 20_000]))
    assert np.abs(residual(decode(streamed, AudioFormat.PCM)[0], 24_000)).max() < 0.6 / 32_768


def test_a_finished_file_has_true_sizes_and_opens_in_the_standard_library() -> None:
    samples = tone(0.5, 24_000)
    encoder = open_encoder(AudioFormat.WAV, source_rate=24_000, live=False)
    assert [encoder.encode(part) for part in np.array_split(samples, 5)] == [b""] * 5
    finished = encoder.finish()
    with wave.open(io.BytesIO(finished)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.getnframes() == len(samples)
        assert file.readframes(len(samples)) == to_s16(samples).tobytes()


def test_decoders_read_a_live_stream_to_its_last_sample() -> None:
    samples = tone(0.5, 24_000)
    streamed = encode_all(open_encoder(AudioFormat.WAV, source_rate=24_000), np.array_split(samples, 9))
    for decoded, rate in (decode(streamed, AudioFormat.WAV), decode_with_soundfile(streamed)):
        assert rate == 24_000
        assert np.array_equal(to_s16(decoded.astype(np.float32)), to_s16(samples))
