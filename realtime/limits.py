"""Every limit of the server, in one place: configurable, and published by `/v1/limits` and `session.configured`.

What one model may do is decided by its deployment; `model_limits` says it in the same words.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from streamsynth.config.deployment import Deployment
from streamsynth.errors import invalid_value
from streamsynth.speech import MAX_TEXT_CHARACTERS, SpeechTraits
from streamsynth.video import VideoTraits

KIB = 1024
MIB = 1024 * KIB
_LEAST_OUTBOUND_BYTES = KIB
_MOST_LEAD_CHUNKS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one client, and all of them together, may ask of the server. Seconds, bytes and characters as the names say.

    `running_utterances` speak at once, at most `queued_utterances` more wait, each for at most `queue_wait_s`.
    `finished_file_bytes` bounds audio that is held back until all of it is made (a wav with true sizes).
    Of the jobs of `/v1/videos` at most `queued_videos` wait, each `queued_video_s`; finished ones are kept within
    `stored_videos`, `stored_video_bytes` and `stored_video_s`, the oldest go first.
    A paced video is sent `video_lead_chunks` ahead of its viewer; one that drops holds `video_held_chunks` before the
    encoder; a keyframe begins every `video_keyframe_chunks`-th chunk.
    `key_share` is the part of the sessions and of the running utterances that one API key may hold (without keys: all).
    """

    first_message_s: float = 10
    idle_s: float = 60
    ping_interval_s: float = 20
    dead_peer_s: float = 40
    write_stall_s: float = 30
    close_wait_s: float = 2
    session_s: float = 24 * 3600
    drain_s: float = 10

    config_message_bytes: int = 4 * MIB
    message_bytes: int = 128 * KIB
    outbound_message_bytes: int = 256 * KIB
    video_message_bytes: int = MIB
    body_bytes: int = 6 * MIB
    body_s: float = 60
    text_characters: int = MAX_TEXT_CHARACTERS
    finished_file_bytes: int = 64 * MIB
    reference_pixels: int = 16 * 1024 * 1024

    stored_videos: int = 1000
    stored_video_bytes: int = 4 * 1024 * MIB
    stored_video_s: float = 7 * 24 * 3600
    queued_videos: int = 64
    queued_video_s: float = 3600
    request_images: int = 10

    video_lead_chunks: int = 1
    video_held_chunks: int = 2
    video_keyframe_chunks: int = 4

    connections: int = 4096
    sessions: int = 1024
    session_utterances: int = 64
    running_utterances: int = 256
    queued_utterances: int = 256
    queue_wait_s: float = 30
    key_share: float = 0.5

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value > 0):
                raise invalid_value(field.name, value, "a number above 0")
            if field.type == "int" and not isinstance(value, int):
                raise invalid_value(field.name, value, "an integer")
        if self.key_share > 1:
            raise invalid_value("key_share", self.key_share, "at most 1")
        if self.video_lead_chunks > _MOST_LEAD_CHUNKS:
            raise invalid_value("video_lead_chunks", self.video_lead_chunks, f"at most {_MOST_LEAD_CHUNKS}")
        if self.text_characters > MAX_TEXT_CHARACTERS:
            raise invalid_value("text_characters", self.text_characters, f"at most {MAX_TEXT_CHARACTERS}")
        if self.outbound_message_bytes < _LEAST_OUTBOUND_BYTES:
            limit = f"at least {_LEAST_OUTBOUND_BYTES}"
            raise invalid_value("outbound_message_bytes", self.outbound_message_bytes, limit)

    def published(self) -> dict[str, float]:
        """Name and value of each limit, as clients see them."""
        return dataclasses.asdict(self)


def model_limits(deployment: Deployment, traits: SpeechTraits | VideoTraits) -> dict[str, float]:
    """Name and value of each limit that a model's deployment sets, as clients see them; `traits` as it was loaded."""
    stage = deployment.stages[deployment.pipeline.output]
    if isinstance(traits, SpeechTraits):
        own: dict[str, float] = {
            "max_new_tokens": traits.max_new_tokens,
            "max_audio_s": traits.max_audio_seconds,
            "running_utterances": stage.max_num_seqs,
            "queued_utterances": stage.max_queued,
        }
    else:
        own = {
            "prompt_characters": traits.max_prompt_characters,
            "max_frames": traits.max_frames,
            "running_videos": stage.max_num_seqs,
            "queued_videos": stage.max_queued,
        }
    return {
        **own,
        "lead_s": stage.lead_seconds,
        "stalled_engine_s": stage.stall_timeout_s,
        "queue_wait_s": stage.queue_timeout_s,
    }
