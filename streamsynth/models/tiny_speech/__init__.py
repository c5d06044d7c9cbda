"""tiny-speech, the embedded autoregressive voice: a small talker in the CSM layout, a small codec in the Mimi layout."""
