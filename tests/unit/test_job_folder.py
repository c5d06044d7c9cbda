"""Jobs on disk: what is saved is found again, what a dead server left unfinished has failed, and nothing else stays."""

from __future__ import annotations

import msgspec
import pytest

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Progress
from streamsynth.realtime.job_folder import JobFolder
from streamsynth.realtime.video_job import Headway, JobRecord, JobStatus, begun, completed, failed, shown


def record(number: int = 1, **changes: object) -> JobRecord:
    made = JobRecord(
        id=f"video_{number}",
        owner="local",
        status=JobStatus.QUEUED,
        created_at=100 + number,
        model="paint",
        prompt="red",
        width=128,
        height=128,
        fps=16,
        num_frames=40,
        seed=2**62,
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    return JobFolder(tmp_path_factory.mktemp("data") / "videos")


def names(folder: JobFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


def test_finished_jobs_are_found_as_they_were_in_the_order_of_their_making(folder: JobFolder) -> None:
    assert folder.open() == []
    done = completed(begun(record(2)), 5, 200.0)
    lost = failed(record(1), StreamSynthError(ErrorCode.ENGINE_FAILED, "no", param="prompt"), 150.0)
    for each in (done, lost):
        folder.save(each)
    folder.clip(done.id).write_bytes(b"12345")
    folder.close()
    again = JobFolder(folder.path)
    assert again.open() == [lost, done]
    assert again.clip(done.id).read_bytes() == b"12345"


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.IN_PROGRESS])
def test_what_a_dead_server_left_unfinished_has_failed_for_that_reason(folder: JobFolder, status: JobStatus) -> None:
    folder.open()
    folder.save(record(status=status))
    folder.unfinished_clip("video_1").write_bytes(b"half")
    folder.close()
    folder.clip("video_1").write_bytes(b"renamed, and then the end came")
    again = JobFolder(folder.path)
    (found,) = again.open()
    assert found.status is JobStatus.FAILED and found.completed_at is not None
    assert found.error is not None and found.error["code"] == "interrupted"
    assert names(folder) == {"lock", "video_1.json"}
    again.close()
    assert JobFolder(folder.path).open() == [found], "it is saved so"


def test_files_that_belong_to_no_job_go_and_a_record_that_cannot_be_read_stays(folder: JobFolder) -> None:
    folder.open()
    strays = {f"video_{'0' * 23}{name}" for name in ("9.mp4", "9.jpg", "8.json.part", "7.mp4.part")}
    others = {"video_7.json", "video_holiday.mp4", "video_2.part", "notes.txt"}
    for name in strays | others:
        (folder.path / name).write_bytes(b"{")
    folder.close()
    assert JobFolder(folder.path).open() == []
    assert names(folder) == {"lock", *others}


@pytest.mark.parametrize(
    "changes",
    [{"id": "video_2"}, {"fps": 0}, {"error": {"code": "of_tomorrow", "message": "no"}}, {"error": {}}],
)
def test_a_record_that_cannot_be_shown_is_left_alone(folder: JobFolder, changes: dict[str, object]) -> None:
    """As another version or another hand wrote it."""
    folder.open()
    (folder.path / "video_1.json").write_bytes(msgspec.json.encode(record(status=JobStatus.FAILED, **changes)))
    folder.close()
    assert JobFolder(folder.path).open() == []
    assert names(folder) == {"lock", "video_1.json"}


def test_removing_leaves_nothing_and_can_be_repeated(folder: JobFolder) -> None:
    folder.open()
    folder.save(record())
    for path in (folder.clip("video_1"), folder.thumbnail("video_1"), folder.unfinished_clip("video_1")):
        path.write_bytes(b"x")
    folder.remove("video_1")
    folder.remove("video_1")
    assert names(folder) == {"lock"}


def test_a_record_that_cannot_be_written_leaves_nothing(folder: JobFolder) -> None:
    folder.open()
    (folder.path / "video_1.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        folder.save(record())
    assert names(folder) == {"lock", "video_1.json"}


def test_two_servers_do_not_share_a_folder(folder: JobFolder) -> None:
    folder.open()
    with pytest.raises(StreamSynthError, match="another server keeps its videos in") as refused:
        JobFolder(folder.path).open()
    assert refused.value.code is ErrorCode.START_FAILED and refused.value.param == "data"


def test_a_folder_that_cannot_be_is_refused_by_name(folder: JobFolder) -> None:
    folder.path.write_bytes(b"a file")
    with pytest.raises(StreamSynthError, match="cannot be kept in") as refused:
        folder.open()
    assert refused.value.param == "data"


def test_progress_is_that_of_the_pictures_or_of_the_steps_and_100_is_a_finished_file() -> None:
    running = begun(record())
    assert Headway().percent(running) == 0
    assert Headway(frames=10).percent(running) == 25
    assert Headway(progress=Progress(3, 20)).percent(running) == 15
    assert Headway(frames=2, progress=Progress(20, 20)).percent(running) == 99, "it never goes back"
    assert Headway(frames=40, progress=Progress(20, 20)).percent(running) == 99
    assert Headway().percent(completed(running, 1, 5.0)) == 100


def test_a_job_is_shown_in_openais_words() -> None:
    said = shown(completed(record(), 7, 500.0), Headway(), kept_s=60)
    assert said["object"] == "video" and said["status"] == "completed" and said["progress"] == 100
    assert (said["seconds"], said["size"], said["seed"]) == ("2.5", "128x128", str(2**62))
    assert (said["created_at"], said["completed_at"], said["expires_at"]) == (101, 500, 560)
    broken = failed(record(), StreamSynthError(ErrorCode.ENGINE_FAILED, "no", param="prompt"), 150.0)
    expected = {"code": "engine_failed", "message": "no", "param": "prompt", "type": "server_error"}
    assert shown(broken, Headway(), kept_s=60)["error"] == expected
