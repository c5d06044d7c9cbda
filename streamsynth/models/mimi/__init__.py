"""The Mimi audio codec (Défossez et al. 2024; the Hugging Face `MimiModel` layout): streaming encode and decode."""
