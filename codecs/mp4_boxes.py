"""Fragmented MP4, written by ourselves: a header once, then one fragment after the other, each complete at once.

ISO/IEC 14496-12 and -15. PyAV's muxer hands a fragment out only when the next one begins: a chunk too late.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_MATRIX = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
# Normal rate, full volume, nothing else.
_PRESENTATION = struct.pack(">IH", 0x10000, 0x100) + bytes(10) + _MATRIX + bytes(24)
_KEYFRAME, _DEPENDENT = 0x02000000, 0x01010000
_TRUN_FLAGS = 0x000701  # data offset; duration, size and flags of each sample
_DEFAULT_BASE_IS_MOOF = 0x020000
_BT709_NARROW = b"nclx" + struct.pack(">HHHB", 1, 1, 1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoTrack:
    """`avcc` is the AVCDecoderConfigurationRecord; `timescale` ticks make a second."""

    width: int
    height: int
    timescale: int
    avcc: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class AudioTrack:
    """`asc` is the AudioSpecificConfig; the first `priming` samples are the encoder's, and are not played."""

    sample_rate: int
    channels: int
    priming: int
    asc: bytes

    @property
    def timescale(self) -> int:
        return self.sample_rate


@dataclass(frozen=True, slots=True)
class Sample:
    """A coded picture or audio frame, its duration in ticks of its track."""

    data: bytes
    duration: int
    keyframe: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of track number `track` (from 1), the first at `decode_time` ticks."""

    track: int
    decode_time: int
    samples: Sequence[Sample]


def header(tracks: Sequence[VideoTrack | AudioTrack]) -> bytes:
    """`ftyp` and `moov`: what a player needs before any fragment."""
    movie = _full(b"mvhd", 0, 0, struct.pack(">4I", 0, 0, 1000, 0) + _PRESENTATION + _u32(len(tracks) + 1))
    traks = b"".join(_trak(number, track) for number, track in enumerate(tracks, 1))
    trex = b"".join(_full(b"trex", 0, 0, struct.pack(">5I", n, 1, 0, 0, 0)) for n in range(1, len(tracks) + 1))
    brands = _box(b"ftyp", b"iso6" + _u32(0) + b"iso6" + b"cmfc" + b"mp41")
    return brands + _box(b"moov", movie + traks + _box(b"mvex", trex))


def fragment(sequence: int, runs: Sequence[Run]) -> bytes:
    """`moof` and `mdat`. `sequence` counts from 1."""
    size = len(_moof(sequence, runs, 0))
    media = b"".join(sample.data for run in runs for sample in run.samples)
    return _moof(sequence, runs, size + 8) + _box(b"mdat", media)


def ending() -> bytes:
    """An empty `mfra`: the stream ended here on purpose."""
    return _box(b"mfra", _full(b"mfro", 0, 0, _u32(24)))


def _moof(sequence: int, runs: Sequence[Run], data_offset: int) -> bytes:
    trafs = []
    for run in runs:
        tfhd = _full(b"tfhd", 0, _DEFAULT_BASE_IS_MOOF, _u32(run.track))
        tfdt = _full(b"tfdt", 1, 0, struct.pack(">Q", run.decode_time))
        entries = b"".join(
            struct.pack(">3I", each.duration, len(each.data), _KEYFRAME if each.keyframe else _DEPENDENT)
            for each in run.samples
        )
        trun = _full(b"trun", 0, _TRUN_FLAGS, struct.pack(">Ii", len(run.samples), data_offset) + entries)
        data_offset += sum(len(each.data) for each in run.samples)
        trafs.append(_box(b"traf", tfhd + tfdt + trun))
    return _box(b"moof", _full(b"mfhd", 0, 0, _u32(sequence)) + b"".join(trafs))


def _trak(number: int, track: VideoTrack | AudioTrack) -> bytes:
    sound = isinstance(track, AudioTrack)
    size = (0, 0) if isinstance(track, AudioTrack) else (track.width << 16, track.height << 16)
    place = struct.pack(">5I", 0, 0, number, 0, 0) + bytes(8) + struct.pack(">4h", 0, 0, 0x100 if sound else 0, 0)
    tkhd = _full(b"tkhd", 0, 3, place + _MATRIX + struct.pack(">2I", *size))
    mdhd = _full(b"mdhd", 0, 0, struct.pack(">4I2H", 0, 0, track.timescale, 0, 0x55C4, 0))
    handler = b"soun" if sound else b"vide"
    hdlr = _full(b"hdlr", 0, 0, bytes(4) + handler + bytes(12) + b"StreamSynth\0")
    kind = _full(b"smhd", 0, 0, bytes(4)) if sound else _full(b"vmhd", 0, 1, bytes(8))
    dinf = _box(b"dinf", _full(b"dref", 0, 0, _u32(1) + _full(b"url ", 0, 1, b"")))
    tables = b"".join(_full(name, 0, 0, bytes(size)) for name, size in ((b"stts", 4), (b"stsc", 4), (b"stsz", 8)))
    entry = _sound_entry(track) if isinstance(track, AudioTrack) else _picture_entry(track)
    stbl = _box(b"stbl", _full(b"stsd", 0, 0, _u32(1) + entry) + tables + _full(b"stco", 0, 0, bytes(4)))
    return _box(b"trak", tkhd + _edits(track) + _box(b"mdia", mdhd + hdlr + _box(b"minf", kind + dinf + stbl)))


def _edits(track: VideoTrack | AudioTrack) -> bytes:
    """The presentation starts behind the audio encoder's priming."""
    if not isinstance(track, AudioTrack) or not track.priming:
        return b""
    return _box(b"edts", _full(b"elst", 0, 0, struct.pack(">2Ii2h", 1, 0, track.priming, 1, 0)))


def _picture_entry(track: VideoTrack) -> bytes:
    fields = bytes(6) + struct.pack(">H", 1) + bytes(16) + struct.pack(">2H", track.width, track.height)
    fields += struct.pack(">2I", 0x480000, 0x480000) + bytes(4) + struct.pack(">H", 1) + bytes(32)
    fields += struct.pack(">Hh", 24, -1)
    return _box(b"avc1", fields + _box(b"avcC", track.avcc) + _box(b"colr", _BT709_NARROW))


def _sound_entry(track: AudioTrack) -> bytes:
    fields = bytes(6) + struct.pack(">H", 1) + bytes(8)
    fields += struct.pack(">4HI", track.channels, 16, 0, 0, track.sample_rate << 16)
    config = _descriptor(4, b"\x40\x15" + bytes(11) + _descriptor(5, track.asc))
    return _box(b"mp4a", fields + _full(b"esds", 0, 0, _descriptor(3, bytes(3) + config + _descriptor(6, b"\x02"))))


def _descriptor(tag: int, content: bytes) -> bytes:
    return bytes((tag, len(content))) + content


def _box(name: bytes, content: bytes) -> bytes:
    return _u32(len(content) + 8) + name + content


def _full(name: bytes, version: int, flags: int, content: bytes) -> bytes:
    return _box(name, struct.pack(">I", version << 24 | flags) + content)


def _u32(number: int) -> bytes:
    return struct.pack(">I", number)
