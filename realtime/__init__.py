"""The server: aiohttp routes, the speech dialects, sessions, limits and auth. Imports no model and no torch."""
