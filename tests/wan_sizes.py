"""Sizes of a whole Wan folder that is made and run in a moment."""

from streamsynth.bench.random_wan import WanSizes
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.text_encoder import TextEncoderConfig
from streamsynth.models.wan.tiny_vae import TinyVaeConfig
from streamsynth.models.wan.vae_config import VaeConfig

SMALL_WAN = WanSizes(
    transformer=WanConfig(
        num_attention_heads=2, attention_head_dim=12, text_dim=16, freq_dim=16, ffn_dim=32, num_layers=2
    ),
    text_encoder=TextEncoderConfig(vocab_size=257, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
    vae=VaeConfig(base_dim=4, num_res_blocks=1),
    tiny_vae=TinyVaeConfig(decoder_widths=(8, 8, 8, 8), encoder_width=8),
)
