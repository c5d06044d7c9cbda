"""Plain decoder-only transformers in the Llama and Qwen layouts; also the trunk of the codec talkers."""
