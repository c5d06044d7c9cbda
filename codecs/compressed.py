"""FLAC, MP3, Ogg Opus and ADTS AAC through PyAV, written to a sink that hands bytes out as the muxer makes them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import av
import numpy as np
import numpy.typing as npt

from streamsynth.codecs.formats import AudioFormat
from streamsynth.codecs.quantise import saturate, to_s16

_FRAME_MS = 20


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How PyAV is asked for one format."""

    muxer: str
    codec: str
    sample_format: str
    codec_options: Mapping[str, str] = field(default_factory=dict)
    muxer_options: Mapping[str, str] = field(default_factory=dict)


_RECIPES: Mapping[AudioFormat, _Recipe] = {
    # The muxer's default is 8 KiB of padding for tags that never come.
    AudioFormat.FLAC: _Recipe("flac", "flac", "s16", muxer_options={"metadata_header_padding": "0"}),
    # A bit reservoir would hold each frame back until the next (24 ms at 24 kHz); Xing can only be right at the end.
    AudioFormat.MP3: _Recipe(
        "mp3", "libmp3lame", "fltp", {"reservoir": "0"}, {"write_xing": "0", "id3v2_version": "0"}
    ),
    # Ogg collects packets into a page for a second unless told otherwise (in microseconds).
    AudioFormat.OPUS: _Recipe(
        "ogg", "libopus", "flt", {"frame_duration": str(_FRAME_MS)}, {"page_duration": str(_FRAME_MS * 1_000)}
    ),
    # The default coder searches twice as long for no gain at these bit rates.
    AudioFormat.AAC: _Recipe("adts", "aac", "fltp", {"aac_coder": "fast"}),
}


def _bit_rate(format: AudioFormat, sample_rate: int) -> int | None:  # noqa: A002 - the wire's own word
    wide = sample_rate > 24_000
    match format:
        case AudioFormat.MP3:
            return 128_000 if wide else 64_000
        case AudioFormat.AAC:
            return 128_000 if wide else 96_000
        case AudioFormat.OPUS:
            return 48_000
        case _:
            return None


class _Outlet:
    """Where PyAV writes a live stream. It has no `seek`, so muxers write each byte once, in order."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class _WholeFile(io.BytesIO):
    """Where PyAV writes a finished file: the muxer goes back to put true sizes in, so nothing is taken early."""

    def take(self) -> bytes:
        return b""


class CompressedCarrier:
    """One container for the whole stream; its header is written when it is opened and comes with the first piece.

    Blocks for as long as encoding takes, without the GIL. The codec's frames are of fixed size: what does not fill
    one is carried to the next call. Opening, each call and `close` may be on different threads, one at a time.

    What a decoder gets back, for n samples in:
    flac: n, bit for bit. Live, STREAMINFO says that the total is unknown; a finished file has total and MD5.
    opus: n * 48000 / sample_rate at 48 kHz: the pre-skip covers the encoder's delay, the last granule position the end.
    Each stream has a random Ogg serial number, as chaining needs: the only bytes that differ between equal streams.
    mp3: 1105 samples of silence first (encoder 576, decoder 529), then n at 95% (LAME leaves room for overshoot), then
    silence to a whole frame.
    aac: 1024 samples of silence first, then n, then silence to a whole frame.
    The last two formats have no field for their delay in a stream: only a Xing header or an MP4 edit list could say it.
    """

    def __init__(self, format: AudioFormat, sample_rate: int, *, live: bool) -> None:  # noqa: A002 - the wire's own word
        recipe = _RECIPES[format]
        options = dict(recipe.codec_options)
        if format is AudioFormat.FLAC:
            options["frame_size"] = str(sample_rate * _FRAME_MS // 1_000)
        # Only a FLAC file has sizes to be true.
        self._sink: _Outlet | _WholeFile = _WholeFile() if format is AudioFormat.FLAC and not live else _Outlet()
        self._sample_format = recipe.sample_format
        self._sample_rate = sample_rate
        self._written = 0
        self._container = av.open(
            self._sink, "w", format=recipe.muxer, options={**recipe.muxer_options, "flush_packets": "1"}
        )
        stream = self._container.add_stream(
            recipe.codec, rate=sample_rate, options=options, layout="mono", format=recipe.sample_format
        )
        assert isinstance(stream, av.AudioStream)
        self._stream = stream
        bit_rate = _bit_rate(format, sample_rate)
        if bit_rate is not None:
            self._stream.codec_context.bit_rate = bit_rate
        self._container.start_encoding()

    def write(self, samples: npt.NDArray[np.float32]) -> bytes:
        if len(samples):
            self._container.mux(self._stream.encode(self._frame(samples)))
        return self._sink.take()

    def finish(self) -> bytes:
        """The rest of the audio and the container's end; closes the container."""
        if self._written:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.getvalue() if isinstance(self._sink, _WholeFile) else self._sink.take()

    def close(self) -> None:
        """Give the encoder back, also half-way through a stream. Idempotent."""
        self._container.close()
        self._sink.take()

    def _frame(self, samples: npt.NDArray[np.float32]) -> av.AudioFrame:
        plane = to_s16(samples) if self._sample_format == "s16" else saturate(samples)
        frame = av.AudioFrame.from_ndarray(plane.reshape(1, -1), format=self._sample_format, layout="mono")
        frame.sample_rate = self._sample_rate
        frame.pts = self._written
        self._written += len(samples)
        return frame
