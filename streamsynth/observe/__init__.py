"""What is measured while the server runs: metrics, continuity, loop lag. Never holds ids or text in a label."""
