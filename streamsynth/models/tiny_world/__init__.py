"""tiny-world, the embedded video model: shapes that move over landscapes, 128x128, steered by simple words."""
