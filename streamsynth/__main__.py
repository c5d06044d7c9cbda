"""`python -m streamsynth` is the `streamsynth` command."""

from __future__ import annotations

from streamsynth.cli import main

if __name__ == "__main__":
    main()
