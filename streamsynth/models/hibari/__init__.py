"""The hibari voice: PyPI hibari-tts, one English speaker, as a generation stage."""
