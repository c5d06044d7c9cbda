"""Text on its way to a voice: cut as it arrives, cleaned of what has no sound, checked for what cannot be said."""
