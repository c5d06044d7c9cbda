"""tiny-speech, the embedded autoregressive voice: a small talker in CSM layout and a small codec in Mimi layout."""
