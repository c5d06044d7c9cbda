"""Every format as a stream: one container, the same however it is cut, decodable from the start, exact in length."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from decoded import (
    PRIMING,
    decode,
    decode_with_soundfile,
    decodes,
    encode_all,
    encoded_at_once,
    packets,
    residual,
    tone,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.codecs import CONTENT_TYPES, SAMPLE_RATES, AudioEncoder, AudioFormat, open_encoder
from streamsynth.codecs.compressed import CompressedCarrier
from streamsynth.codecs.quantise import to_s16
from streamsynth.errors import ErrorCode, StreamSynthError

COMPRESSED = [AudioFormat.FLAC, AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC]
LOSSY = [AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC]
FIRST_BYTES_MS = 120


def carried_rates(audio_format: AudioFormat) -> list[int]:
    rates = SAMPLE_RATES[audio_format]
    return [8_000, 11_025, 24_000, 44_100, 47_999, 48_000] if isinstance(rates, range) else list(rates)


EVERY_RATE = [(audio_format, rate) for audio_format in AudioFormat for rate in carried_rates(audio_format)]


@settings(deadline=None, max_examples=40)
@given(cuts=st.lists(st.integers(0, 12_345), max_size=30), audio_format=st.sampled_from(COMPRESSED))
def test_any_chunking_gives_the_packets_of_one_call(cuts: list[int], audio_format: AudioFormat) -> None:
    """Byte for byte, but for the random number that Ogg gives each stream."""
    samples = np.random.default_rng(5).uniform(-0.5, 0.5, 12_345).astype(np.float32)
    encoder = open_encoder(audio_format, source_rate=24_000)
    streamed, whole = encode_all(encoder, np.split(samples, sorted(cuts))), encoded_at_once(audio_format, samples)
    assert streamed == whole or audio_format is AudioFormat.OPUS
    assert packets(streamed, audio_format) == packets(whole, audio_format)
    assert encoder.samples == len(samples)


@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 5_000), cuts=st.lists(st.integers(0, 5_000), max_size=10))
def test_streamed_flac_decodes_to_the_very_samples(count: int, cuts: list[int]) -> None:
    samples = np.random.default_rng(count).uniform(-1.1, 1.1, count).astype(np.float32)
    streamed = encode_all(open_encoder(AudioFormat.FLAC, source_rate=24_000), np.split(samples, sorted(cuts)))
    decoded, rate = decode(streamed, AudioFormat.FLAC)
    assert rate == 24_000
    assert np.array_equal(decoded * 32_768, to_s16(samples))
    if count > 1:
        # After a read soundfile seeks to where it is, which libFLAC refuses at the end of a stream of unknown length.
        assert np.array_equal(decode_with_soundfile(streamed, count - 1)[0], decoded[:-1])


def test_a_finished_flac_file_knows_its_length_and_opens_anywhere() -> None:
    samples = tone(1.2345, 24_000)
    encoder = open_encoder(AudioFormat.FLAC, source_rate=24_000, live=False)
    assert encoder.encode(samples[:9_999]) == b""
    finished = encoder.encode(samples[9_999:]) + encoder.finish()
    assert soundfile.info(io.BytesIO(finished)).frames == len(samples)
    assert np.array_equal(decode_with_soundfile(finished)[0] * 32_768, to_s16(samples))


@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 5_000), rate=st.sampled_from(list(SAMPLE_RATES[AudioFormat.OPUS])))
def test_streamed_opus_decodes_to_the_exact_length(count: int, rate: int) -> None:
    """The pre-skip takes the encoder's delay away, the last granule position the padding."""
    samples = np.random.default_rng(count).uniform(-0.5, 0.5, count).astype(np.float32)
    streamed = encoded_at_once(AudioFormat.OPUS, samples, rate)
    decoded, decoded_rate = decode(streamed, AudioFormat.OPUS)
    assert (len(decoded), decoded_rate) == (count * 48_000 // rate, 48_000)
    decoded, decoded_rate = decode_with_soundfile(streamed)
    assert (len(decoded), decoded_rate) == (count, rate)


@pytest.mark.parametrize("audio_format", PRIMING)
@pytest.mark.parametrize("count", [1, 575, 576, 1_023, 1_025, 24_000])
def test_mp3_and_aac_lose_nothing_and_pad_less_than_two_frames(audio_format: AudioFormat, count: int) -> None:
    decoded, rate = decode(encoded_at_once(audio_format, tone(1.0, 24_000)[:count]), audio_format)
    assert rate == 24_000
    assert 0 <= len(decoded) - PRIMING[audio_format] - count < 2 * 1_024


@pytest.mark.parametrize("audio_format", PRIMING)
def test_mp3_and_aac_start_after_exactly_their_documented_priming(audio_format: AudioFormat) -> None:
    burst = np.zeros(9_600, dtype=np.float32)
    burst[2_400:4_800] = tone(0.1, 24_000, 700) * np.hanning(2_400)
    decoded, _ = decode(encoded_at_once(audio_format, burst), audio_format)
    lags = np.correlate(decoded, burst, mode="valid") if len(decoded) > len(burst) else np.zeros(1)
    assert int(np.argmax(lags)) == PRIMING[audio_format]


@pytest.mark.parametrize("rate", [24_000, 48_000])
@pytest.mark.parametrize("audio_format", LOSSY)
def test_the_tone_comes_back_in_tune_and_unbroken_across_joins(audio_format: AudioFormat, rate: int) -> None:
    """S2, S4: chunks of 4,063 samples; a seam of a few samples would leave ten times as much beside the tone."""
    samples = tone(1.0, rate)
    encoder = open_encoder(audio_format, source_rate=rate, sample_rate=rate)
    streamed = encode_all(encoder, np.split(samples, range(4_063, len(samples), 4_063)))
    decoders = [decode(streamed, audio_format)]
    if audio_format is not AudioFormat.AAC:  # libsndfile has none
        decoders.append(decode_with_soundfile(streamed))
    for decoded, decoded_rate in decoders:
        left = residual(decoded[decoded_rate // 5 : -decoded_rate // 5], decoded_rate)
        assert np.sqrt(np.mean(left**2)) < 0.02
        assert np.abs(left).max() < 0.08


@pytest.mark.parametrize("source_rate", [24_000, None])
@pytest.mark.parametrize(("audio_format", "rate"), EVERY_RATE)
def test_the_first_bytes_decode_within_120_ms_of_media(
    audio_format: AudioFormat, rate: int, source_rate: int | None
) -> None:
    """From the rate of the embedded voices as from the format's own."""
    source_rate = source_rate or rate
    encoder = open_encoder(audio_format, source_rate=source_rate, sample_rate=rate)
    started = encoder.encode(tone(FIRST_BYTES_MS / 1_000, source_rate))
    encoder.close()
    assert decodes(started, audio_format)


@pytest.mark.parametrize(("audio_format", "rate"), EVERY_RATE)
def test_bytes_keep_pace_with_the_media(audio_format: AudioFormat, rate: int) -> None:
    """No muxer collects audio into larger pages; nothing stays behind for the end but the codec's own delay."""
    encoder = open_encoder(audio_format, source_rate=rate, sample_rate=rate)
    pieces = [encoder.encode(part) for part in np.array_split(tone(1.0, rate), 8)]
    encoder.close()
    assert all(pieces)
    decoded, decoded_rate = decode(b"".join(pieces), audio_format)
    if audio_format is not AudioFormat.PCM:
        assert len(decoded) / decoded_rate > 1 - FIRST_BYTES_MS / 1_000


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_a_stream_is_one_container(audio_format: AudioFormat) -> None:
    """S2, S4"""
    streamed = encode_all(open_encoder(audio_format, source_rate=24_000), np.array_split(tone(1.0, 24_000), 20))
    starts = {
        AudioFormat.WAV: b"RIFF",
        AudioFormat.FLAC: b"fLaC",
        AudioFormat.OPUS: b"OpusHead",
    }
    for name, marker in starts.items():
        assert streamed.count(marker) == (name is audio_format)
    assert not {marker for marker in (b"ID3", b"Xing", b"Info", b"TAG") if marker in streamed}


def test_mp3_and_aac_are_bare_frames_from_the_first_byte() -> None:
    """Any frame is a place to start: MPEG layer III sync, ADTS sync without CRC."""
    assert encoded_at_once(AudioFormat.MP3, tone(0.5, 24_000))[:2] == b"\xff\xf3"
    assert encoded_at_once(AudioFormat.AAC, tone(0.5, 24_000))[:2] == b"\xff\xf1"


def test_an_ogg_page_carries_20_ms() -> None:
    streamed = encoded_at_once(AudioFormat.OPUS, tone(1.0, 48_000), 48_000)
    positions = [int.from_bytes(page[1:9], "little") for page in streamed.split(b"OggS\x00")[3:]]
    assert {later - earlier for earlier, later in itertools.pairwise(positions[:-1])} == {960}


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("live", [True, False])
def test_a_stream_without_samples_ends_cleanly(audio_format: AudioFormat, live: bool) -> None:
    encoder = open_encoder(audio_format, source_rate=24_000, live=live)
    empty = encoder.encode(np.zeros(0, dtype=np.float32)) + encoder.finish()
    assert encoder.samples == 0
    assert empty[:4] == {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OggS"}.get(audio_format.value, b"")


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_an_encoder_can_be_closed_at_any_point_and_says_so_afterwards(audio_format: AudioFormat) -> None:
    for samples in (0, 1, 3_000):
        encoder = open_encoder(audio_format, source_rate=24_000)
        encoder.encode(np.zeros(samples, dtype=np.float32))
        encoder.close()
        encoder.close()
        with pytest.raises(StreamSynthError, match="closed") as raised:
            encoder.encode(np.zeros(1, dtype=np.float32))
        assert raised.value.code is ErrorCode.ENCODER_FAILED


def test_what_the_encoder_raises_is_an_error_with_its_message() -> None:
    """V42: never a stream that ends as if it were whole."""
    encoder = AudioEncoder(
        AudioFormat.OPUS, 44_100, 44_100, lambda: CompressedCarrier(AudioFormat.OPUS, 44_100, live=True)
    )
    with pytest.raises(StreamSynthError, match=r"opus encoder failed: .*Invalid argument") as raised:
        encoder.encode(tone(0.1, 44_100))
    assert raised.value.code is ErrorCode.ENCODER_FAILED
    assert isinstance(raised.value.__cause__, av.FFmpegError)
    with pytest.raises(StreamSynthError, match="closed"):
        encoder.finish()


@pytest.mark.parametrize(
    ("audio_format", "rate"),
    [
        ("opus", 44_100),
        ("opus", 22_050),
        ("mp3", 8_000),
        ("mp3", 12_000),
        ("aac", 16_000),
        ("pcm", 7_999),
        ("wav", 48_001),
    ],
)
def test_a_rate_that_the_codec_lacks_is_refused_with_both_named(audio_format: str, rate: int) -> None:
    with pytest.raises(StreamSynthError) as raised:
        open_encoder(AudioFormat(audio_format), source_rate=24_000, sample_rate=rate)
    assert raised.value.code is ErrorCode.INVALID_VALUE
    assert raised.value.param == "sample_rate"
    assert str(rate) in raised.value.message
    assert audio_format in raised.value.message
    assert str(max(SAMPLE_RATES[AudioFormat(audio_format)])) in raised.value.message


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_24_khz_mono_unless_asked_otherwise(audio_format: AudioFormat) -> None:
    """S10: whatever rate the engine has."""
    encoder = open_encoder(audio_format, source_rate=44_100)
    streamed = encode_all(encoder, np.array_split(tone(1.0, 44_100), 7))
    assert (encoder.sample_rate, encoder.channels, encoder.samples) == (24_000, 1, 24_000)
    assert encoder.content_type == CONTENT_TYPES[audio_format]
    decoded, rate = decode(streamed, audio_format)
    assert rate == (48_000 if audio_format is AudioFormat.OPUS else 24_000)
    residual(decoded[rate // 5 : -rate // 5], rate)


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_memory_does_not_grow_with_the_stream(audio_format: AudioFormat) -> None:
    """Two minutes are 5.8 MB of s16 and 11.5 MB of float32; a stream keeps neither."""
    encoder = open_encoder(audio_format, source_rate=24_000)
    second = tone(1.0, 24_000)
    for _ in range(10):
        encoder.encode(second)
    before = resident_kib()
    for _ in range(120):
        encoder.encode(second)
    encoder.close()
    assert resident_kib() - before < 1_500


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def test_importing_the_codecs_loads_no_torch() -> None:
    code = "import sys, streamsynth.codecs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
