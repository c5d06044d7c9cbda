"""tiny-speech, the embedded autoregressive voice: a talker in the CSM layout and a codec in the Mimi layout, both small."""
