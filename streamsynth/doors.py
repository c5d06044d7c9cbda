"""The two doors of the Python API: the models of this process, and those of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from streamsynth.generation import Generator
from streamsynth.session import Connection
from streamsynth.video_session import VideoSource

if TYPE_CHECKING:
    from streamsynth.config.deployment import Deployment


class Door(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def connection(self) -> Connection: ...

    def video(self) -> VideoSource: ...

    def generator(self) -> Generator: ...


class LocalDoor:
    """Workers of our own."""

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        from streamsynth.local import LocalConnection
        from streamsynth.local_video import LocalVideo
        from streamsynth.runtime import Runtime

        self._runtime = Runtime(deployments)
        self._connect = LocalConnection
        self._open_video = LocalVideo

    async def start(self) -> None:
        await self._runtime.start()

    async def stop(self) -> None:
        await self._runtime.stop()

    def connection(self) -> Connection:
        return self._connect(self._runtime)

    def video(self) -> VideoSource:
        return self._open_video(self._runtime)

    def generator(self) -> Generator:
        from streamsynth.local_generation import LocalGenerator

        return LocalGenerator(self._runtime)


class RemoteDoor:
    """A server's workers; a socket for each session."""

    def __init__(self, url: str, api_key: str | None) -> None:
        from streamsynth.remote import RemoteConnection
        from streamsynth.remote_socket import VIDEO_ROUTE, socket_url

        self._connect = RemoteConnection
        self._url = socket_url(url)
        self._video_url = socket_url(url, VIDEO_ROUTE)
        self._server_url = url
        self._api_key = api_key

    async def start(self) -> None:
        """Nothing is shared by the sessions."""

    async def stop(self) -> None:
        """Nothing is shared by the sessions."""

    def connection(self) -> Connection:
        return self._connect(self._url, self._api_key)

    def video(self) -> VideoSource:
        from streamsynth.remote_video import RemoteVideo

        return RemoteVideo(self._video_url, self._api_key)

    def generator(self) -> Generator:
        from streamsynth.remote_generation import RemoteGenerator

        return RemoteGenerator(self._server_url, self._api_key)
