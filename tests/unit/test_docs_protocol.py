"""docs/protocol.md says what the code says: messages, fields, errors, limits, routes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

from streamsynth.codecs.formats import AudioFormat
from streamsynth.errors import TABLE, ErrorCode
from streamsynth.realtime import video_messages
from streamsynth.realtime.clip_fields import COMMON_FIELDS, IMAGE_FIELDS, VIDEO_FIELDS
from streamsynth.realtime.fields import HINTS, HTTP_ONLY, SOCKET_ONLY, SPEECH_FIELDS
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.session_config import parse_session_config
from streamsynth.realtime.speech_messages import CLIENT_MESSAGES, SERVER_MESSAGES
from streamsynth.realtime.video_fields import START_FIELDS
from streamsynth.realtime.video_job import Headway, JobRecord, JobStatus, shown
from streamsynth.testing.sine_pipeline import SINE

PAGE = (Path(__file__).parents[2] / "docs/protocol.md").read_text()


def section(heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}[^\n]*\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {heading}"
    return found[1]


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of the table whose header line starts so."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {header} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def fields_of(struct: type[msgspec.Struct]) -> dict[str, bool]:
    """Field names, and whether the field may be left out of what is sent or received."""
    omits = struct.__struct_config__.omit_defaults or struct.__struct_config__.forbid_unknown_fields
    return {field.name: omits and not field.required for field in msgspec.structs.fields(struct)}


def documented_fields(cell: str) -> dict[str, bool]:
    return {name: optional == "?" for name, optional in re.findall(r"`(\w+)`(\??)", cell)}


def test_the_client_messages_are_those_of_the_code() -> None:
    table = {names(row[0])[0]: row[1] for row in rows(section("Client messages"), "message")}
    assert list(table) == list(CLIENT_MESSAGES)
    for name, cell in table.items():
        if name != "session.config":
            assert documented_fields(cell) == fields_of(CLIENT_MESSAGES[name]), name


def test_the_server_messages_are_those_of_the_code() -> None:
    table = {names(row[0])[0]: row[1] for row in rows(section("Server messages"), "message")}
    assert list(table) == list(SERVER_MESSAGES)
    for name, cell in table.items():
        assert documented_fields(cell) == fields_of(SERVER_MESSAGES[name]), name


def test_every_message_that_the_page_mentions_exists() -> None:
    text = PAGE.partition("## 2.")[2].partition("## 3.")[0]
    mentioned = set(re.findall(r"[`\"]((?:session|input|audio)\.[a-z]+)[`\"]", text))
    assert mentioned == {*CLIENT_MESSAGES, *SERVER_MESSAGES} - {"error"}


def test_the_messages_of_the_video_socket_are_those_of_the_code() -> None:
    sent = {names(row[0])[0]: row[1] for row in rows(section("What a client of a video sends"), "message")}
    assert list(sent) == list(video_messages.CLIENT_MESSAGES)
    for name, cell in sent.items():
        if name != "session.start":
            assert set(documented_fields(cell)) == set(fields_of(video_messages.CLIENT_MESSAGES[name])), name
    received = {names(row[0])[0]: row[1] for row in rows(section("What a video sends"), "message")}
    assert list(received) == list(video_messages.SERVER_MESSAGES)
    for name, cell in received.items():
        if name != "error":
            assert documented_fields(cell) == fields_of(video_messages.SERVER_MESSAGES[name]), name


def test_the_start_fields_of_a_video_are_those_of_the_code() -> None:
    table = rows(section("What a client of a video sends"), "field of `session.start`")
    assert {name for row in table for name in names(row[0])} == START_FIELDS


def test_the_config_fields_and_their_defaults_are_those_of_the_code() -> None:
    table = {names(row[0])[0]: row[1] for row in rows(section("Client messages"), "field")}
    assert {*table} - {"response_format"} == SOCKET_ONLY
    settings = parse_session_config({}, {"sine": SINE}).settings
    shown = msgspec.to_builtins(settings.effective())
    for name, cell in table.items():
        assert cell.strip("`").lower() == str(shown.get(name, False)).lower(), name


def test_the_http_fields_are_those_of_the_code() -> None:
    text = section("`POST /v1/audio/speech`")
    table = {names(row[0])[0]: row for row in rows(text, "field")}
    assert {*table, "speaker"} == HTTP_ONLY | SPEECH_FIELDS
    assert set(names(table["response_format"][2])) == {each.value for each in AudioFormat}


def test_the_fields_of_videos_and_images_are_those_of_the_code() -> None:
    videos = {name for row in rows(section("`POST /v1/videos`"), "field") for name in names(row[0])}
    assert videos == VIDEO_FIELDS
    images = {name for row in rows(section("`POST /v1/images/generations`"), "field") for name in names(row[0])}
    assert images | COMMON_FIELDS == IMAGE_FIELDS


def test_the_fields_of_a_job_are_those_of_the_code() -> None:
    text = section("`POST /v1/videos`").partition("A job is OpenAI's `video` object")[2].partition("\n\n")[0]
    record = JobRecord(
        id="a", owner="b", status=JobStatus.QUEUED, created_at=1, model="m", prompt="p", width=1, height=1, fps=1,
        num_frames=1, seed=1,
    )  # fmt: skip
    assert set(names(text)) == set(shown(record, Headway(), 1.0))


def test_the_hints_are_those_of_the_code() -> None:
    listed = section("Errors").partition("Hints are accepted")[2].partition("Over HTTP")[0]
    assert names(listed) == list(HINTS)


def test_the_error_codes_are_those_of_the_code() -> None:
    table = [(names(row[0])[0], int(row[1]), int(row[2])) for row in rows(section("Errors"), "code")]
    assert table == [
        (code.value, shown.http_status, shown.close_code) for code, shown in ((code, TABLE[code]) for code in ErrorCode)
    ]


def test_the_limits_and_their_defaults_are_those_of_the_code() -> None:
    table = {names(row[0])[0]: float(row[1]) for row in rows(section("Limits"), "limit")}
    assert table == {field.name: float(field.default) for field in dataclasses.fields(Limits)}  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1009, 1011, 1013, 4000, 4001, 4002])
def test_every_close_code_is_explained(code: int) -> None:
    assert any(str(code) in row[0] for row in rows(section("Endings"), "code"))


def test_every_route_of_the_page_is_served() -> None:
    source = (Path(__file__).parents[2] / "realtime/app.py").read_text()
    served = set(re.findall(r'web\.(?:get|post|delete)\("([^"]+)"', source))
    assert set(re.findall(r"(?:GET|POST|DELETE|WS) (/[\w/{}]+)`", PAGE)) - {"/v1/realtime"} == served
