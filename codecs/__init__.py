"""Media leaving the server: samples and pictures go in, the bytes of a format come out at once."""  # noqa: A005

from streamsynth.codecs.encoder import AudioEncoder, open_encoder
from streamsynth.codecs.formats import CONTENT_TYPES, DEFAULT_SAMPLE_RATE, SAMPLE_RATES, AudioFormat, check_sample_rate
from streamsynth.codecs.offload import EncodingLane, EncodingQueue
from streamsynth.codecs.pictures import Payload, VideoEncoder, VideoFormat, open_video_encoder
from streamsynth.codecs.wav import wav_header

__all__ = [
    "CONTENT_TYPES",
    "DEFAULT_SAMPLE_RATE",
    "SAMPLE_RATES",
    "AudioEncoder",
    "AudioFormat",
    "EncodingLane",
    "EncodingQueue",
    "Payload",
    "VideoEncoder",
    "VideoFormat",
    "check_sample_rate",
    "open_encoder",
    "open_video_encoder",
    "wav_header",
]
