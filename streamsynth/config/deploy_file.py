"""Deploy files: YAML that sets fields of one pipeline's stages.

pipeline: hibari
stages:
  voice:
    threads: 2
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from streamsynth.config.resolve import Layer, Setting
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

MAX_BYTES = 1 << 20
_KEYS = ("pipeline", "stages")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployFile:
    """What one file says: for which pipeline, and the fields it sets, each with its line."""

    path: Path
    pipeline: str
    layer: Layer


def read_deploy_file(path: Path) -> DeployFile:
    """Reads the file (blocking). Raises StreamSynthError, naming file and line, for whatever is wrong with it."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(str(path), f"cannot be read: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise _refused(str(path), f"larger than {MAX_BYTES} bytes")
    return parse_deploy_file(text, path)


def parse_deploy_file(text: bytes | str, path: Path) -> DeployFile:
    with _loading(text, str(path)) as loader:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise _refused(str(path), "must be a map with the keys " + " and ".join(_KEYS))
        return _read_root(_Reader(loader, path), root)


def parse_value(text: str, place: str) -> object:
    """One value as a deploy file would read it, except that nothing at all is an empty text, not null."""
    if not text:
        return ""
    with _loading(text, place) as loader:
        value: object = loader.get_single_data()
        return value


@contextmanager
def _loading(text: bytes | str, place: str) -> Iterator[_Loader]:
    """A loader over `text`; whatever YAML refuses becomes an error that names `place` and line."""
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:
        raise _refused(place, f"not valid YAML: {str(error).splitlines()[0]}") from None
    try:
        yield loader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise _refused(f"{place}{line}", error.problem or "not valid YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _refused(place, f"not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _read_root(reader: _Reader, root: yaml.MappingNode) -> DeployFile:
    pipeline: str | None = None
    layer: Layer = {}
    for key, origin, node in reader.items(root):
        if key == "pipeline":
            pipeline = reader.value(node)
            if not isinstance(pipeline, str):
                raise invalid_value(f"{origin}: pipeline", pipeline, "the name of a pipeline")
        elif key == "stages":
            layer = reader.stages(node, origin)
        else:
            raise _unknown(origin, key)
    if pipeline is None:
        raise StreamSynthError(ErrorCode.MISSING_FIELD, f"{reader.path}: pipeline is missing", param="pipeline")
    return DeployFile(path=reader.path, pipeline=pipeline, layer=layer)


@dataclass(frozen=True, slots=True)
class _Reader:
    loader: _Loader
    path: Path

    def stages(self, node: yaml.Node, origin: str) -> Layer:
        return {
            name: {field: Setting(self.value(value), line) for field, line, value in self._fields(name, place, fields)}
            for name, place, fields in self.items(self._map(node, origin, "stages"))
        }

    def _fields(self, stage: str, origin: str, node: yaml.Node) -> Iterator[tuple[str, str, yaml.Node]]:
        return self.items(self._map(node, origin, f"stages.{stage}"))

    def items(self, node: yaml.MappingNode) -> Iterator[tuple[str, str, yaml.Node]]:
        """Key, "file:line" and value of each entry; refuses keys that are not text or come twice."""
        self.loader.refuse_duplicates(node)
        self.loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            key, origin = self.value(key_node), f"{self.path}:{key_node.start_mark.line + 1}"
            if not isinstance(key, str):
                raise invalid_value(f"{origin}: key", key, "text")
            yield key, origin, value_node

    def value(self, node: yaml.Node) -> Any:
        return self.loader.construct_object(node, deep=True)

    def _map(self, node: yaml.Node, origin: str, name: str) -> yaml.MappingNode:
        if not isinstance(node, yaml.MappingNode):
            raise invalid_value(f"{origin}: {name}", self.value(node), "a map")
        return node


class _Loader(yaml.SafeLoader):
    """YAML's safe subset, with the duplicate keys refused that PyYAML would let win silently."""

    def refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is set twice", key_node.start_mark)
            seen.add(key)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.refuse_duplicates(node)
        return super().construct_mapping(node, deep)


def _unknown(origin: str, key: str) -> StreamSynthError:
    message = f"{origin}: no field {key!r}; a deploy file has: {', '.join(_KEYS)}"
    return StreamSynthError(ErrorCode.UNKNOWN_FIELD, message, param=key)


def _refused(place: str, problem: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.INVALID_VALUE, f"{place}: {problem}", param="deploy")
