"""Media leaving the server: samples and pictures go in, the bytes of a format come out at once."""  # noqa: A005

from streamsynth.codecs.clips import ClipEncoder
from streamsynth.codecs.encoder import AudioEncoder, open_encoder
from streamsynth.codecs.formats import CONTENT_TYPES, DEFAULT_SAMPLE_RATE, SAMPLE_RATES, AudioFormat, check_sample_rate
from streamsynth.codecs.offload import EncodingLane, EncodingQueue
from streamsynth.codecs.pictures import Payload, VideoEncoder, VideoFormat, open_video_encoder
from streamsynth.codecs.stills import STILL_TYPES, StillFormat, encode_still
from streamsynth.codecs.wav import wav_header

__all__ = [
    "CONTENT_TYPES",
    "DEFAULT_SAMPLE_RATE",
    "SAMPLE_RATES",
    "STILL_TYPES",
    "AudioEncoder",
    "AudioFormat",
    "ClipEncoder",
    "EncodingLane",
    "EncodingQueue",
    "Payload",
    "StillFormat",
    "VideoEncoder",
    "VideoFormat",
    "check_sample_rate",
    "encode_still",
    "open_encoder",
    "open_video_encoder",
    "wav_header",
]
