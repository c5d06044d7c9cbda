"""Audio leaving the server: float32 samples go in, the bytes of PCM, WAV, FLAC, MP3, Opus or AAC come out at once."""  # noqa: A005

from streamsynth.codecs.encoder import AudioEncoder, open_encoder
from streamsynth.codecs.formats import CONTENT_TYPES, DEFAULT_SAMPLE_RATE, SAMPLE_RATES, AudioFormat, check_sample_rate
from streamsynth.codecs.offload import EncodingLane, EncodingQueue
from streamsynth.codecs.wav import wav_header

__all__ = [
    "CONTENT_TYPES",
    "DEFAULT_SAMPLE_RATE",
    "SAMPLE_RATES",
    "AudioEncoder",
    "AudioFormat",
    "EncodingLane",
    "EncodingQueue",
    "check_sample_rate",
    "open_encoder",
    "wav_header",
]
