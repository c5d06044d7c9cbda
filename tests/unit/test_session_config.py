"""`session.config`: the socket's own fields, its defaults, and when two configs are the same."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.session_config import ConfigRequest, parse_session_config
from streamsynth.speech import Granularity
from streamsynth.testing.sine_pipeline import SINE


def parse(**fields: Any) -> ConfigRequest:
    return parse_session_config(fields, {"sine": SINE})


def test_the_defaults_are_the_references() -> None:
    asked = parse()
    assert (asked.settings.speech.format, asked.settings.stream_audio, asked.settings.granularity) == (
        "wav",
        False,
        Granularity.NONE,
    )
    assert (asked.settings.close_on_done, asked.ack) == (False, False)


@pytest.mark.parametrize("name", ["stream_audio", "close_on_done", "ack"])
def test_flags_are_true_false_or_null(name: str) -> None:
    assert parse(**{name: None}) == parse(**{name: False}) == parse()
    assert parse(**{name: True}) != parse()
    for wrong in (1, "true", [], {}):
        with pytest.raises(StreamSynthError) as caught:
            parse(**{name: wrong})
        assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, name)


def test_equal_settings_are_equal_however_they_were_written() -> None:
    """S42"""
    spelled = parse(model="tts-1", voice={"id": "sine"}, response_format="wav", speed=1, seed=None, ack=True)
    assert spelled.settings == parse().settings
    assert parse(speed=1.5).settings != parse().settings
    assert parse(seed="7").settings == parse(seed=7).settings


@pytest.mark.parametrize(
    ("seed", "shown"), [(7, 7), (-(2**53) + 1, -(2**53) + 1), (2**53, str(2**53)), (-(2**63), str(-(2**63)))]
)
def test_a_seed_that_javascript_would_round_is_shown_as_a_string(seed: int, shown: int | str) -> None:
    assert parse(seed=seed).settings.effective().seed == shown


@pytest.mark.parametrize(
    "module", ["speech_session", "speech_messages", "speech_events", "frame_queue", "utterance", "liveness"]
)
def test_the_protocols_core_loads_no_event_loop(module: str) -> None:
    names = "{'asyncio', 'torch', 'aiohttp'}"
    code = f"import sys, streamsynth.realtime.{module}; print(sorted({names} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
