"""The event graph: chunks, edges and flows. Pure asyncio, no torch."""
