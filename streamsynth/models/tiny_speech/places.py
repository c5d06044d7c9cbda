"""Where the weights are that the package carries."""

from importlib.resources import files
from pathlib import Path


def weights_folder() -> Path:
    """Holds `talker/`, `codec/` and `vocab.json`."""
    return Path(str(files("streamsynth.models.tiny_speech"))) / "weights"
