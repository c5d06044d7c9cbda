"""A CSM checkpoint in small: 32 codebooks at 12.5 frames a second, as the pipeline expects, and next to no weights."""

from streamsynth.models.csm.config import CsmConfig
from streamsynth.models.csm.pipeline import CODEBOOKS
from streamsynth.models.llama.config import DecoderConfig
from streamsynth.models.mimi.config import MimiConfig

_HEADS = {"heads": 2, "kv_heads": 1, "head_dim": 16}

SMALL_TALKER = CsmConfig(
    backbone=DecoderConfig(hidden_size=32, layers=2, intermediate_size=48, max_position_embeddings=256, **_HEADS),
    depth=DecoderConfig(hidden_size=32, layers=1, intermediate_size=48, max_position_embeddings=33, **_HEADS),
    codebooks=CODEBOOKS,
    vocab_size=67,
    text_vocab_size=300,
    eos_code=0,
    audio_token=298,
    audio_eos_token=299,
)
SMALL_CODEC = MimiConfig(
    hidden_size=16,
    num_filters=2,
    codebook_size=64,
    codebook_dim=8,
    vector_quantization_hidden_dimension=8,
    upsample_groups=16,
    num_hidden_layers=1,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    sliding_window=16,
)
