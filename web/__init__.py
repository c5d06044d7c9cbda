"""The page in the browser: static files that `streamsynth.realtime.page` serves. docs/ui.md describes them."""
