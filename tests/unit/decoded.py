"""What decoders make of encoded audio: FFmpeg through PyAV, libsndfile through soundfile."""

from __future__ import annotations

import io

import av
import numpy as np
import numpy.typing as npt
import soundfile

from streamsynth.codecs import AudioEncoder, AudioFormat, open_encoder

_DEMUXERS = {AudioFormat.OPUS: "ogg"}

PRIMING = {AudioFormat.MP3: 1_105, AudioFormat.AAC: 1_024}
"""Samples of silence that a decoder makes before the first that was put in: these formats cannot say how many."""

Floats = npt.NDArray[np.float64]


def decode(encoded: bytes, audio_format: AudioFormat) -> tuple[Floats, int]:
    """FFmpeg's samples, full scale 1.0, and their rate. pcm is taken as 24 kHz."""
    if audio_format is AudioFormat.PCM:
        return np.frombuffer(encoded, dtype="<i2") / 32_768, 24_000
    with av.open(io.BytesIO(encoded), format=_DEMUXERS.get(audio_format, audio_format.value)) as container:
        frames = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
        rate = container.streams.audio[0].rate
    samples = np.concatenate(frames) if frames else np.zeros(0)
    return samples / (32_768 if samples.dtype == np.int16 else 1), rate


def packets(encoded: bytes, audio_format: AudioFormat) -> list[tuple[int | None, bytes]]:
    """What the container carries, and when; beside that an Ogg stream has a number of its own."""
    with av.open(io.BytesIO(encoded), format=_DEMUXERS.get(audio_format, audio_format.value)) as container:
        return [(packet.pts, bytes(packet)) for packet in container.demux() if packet.size]


def decode_with_soundfile(encoded: bytes, frames: int = -1) -> tuple[Floats, int]:
    return soundfile.read(io.BytesIO(encoded), frames=frames)


def decodes(encoded: bytes, audio_format: AudioFormat) -> bool:
    """Whether the start of a stream is enough for FFmpeg to make any samples of it."""
    try:
        return len(decode(encoded, audio_format)[0]) > 0
    except av.FFmpegError:
        return False


def tone(seconds: float, rate: int, hertz: float = 440) -> npt.NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def residual(samples: npt.NDArray[np.floating], rate: int, hertz: float = 440) -> Floats:
    """What is left of the samples without the best-fitting tone: a break of phase anywhere leaves a lot."""
    angle = 2 * np.pi * hertz * np.arange(len(samples)) / rate
    basis = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    weights, *_ = np.linalg.lstsq(basis, samples.astype(np.float64), rcond=None)
    assert abs(np.hypot(*weights) - 0.5) < 0.03, "the tone is not there"  # LAME plays at 95%
    return samples - basis @ weights


def encode_all(encoder: AudioEncoder, pieces: list[npt.NDArray[np.float32]]) -> bytes:
    return b"".join([encoder.encode(piece) for piece in pieces]) + encoder.finish()


def encoded_at_once(audio_format: AudioFormat, samples: npt.NDArray[np.float32], rate: int = 24_000) -> bytes:
    return encode_all(open_encoder(audio_format, source_rate=rate, sample_rate=rate), [samples])
