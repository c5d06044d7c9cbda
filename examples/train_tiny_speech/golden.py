"""Writes golden.json for packaged weights: what another implementation must reproduce. README.md has the command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from train_tiny_speech.codec import decode, load_codec
from train_tiny_speech.frames import FRAME_SAMPLES
from train_tiny_speech.sampling import Sampling, speak
from train_tiny_speech.talker_files import load_talker
from train_tiny_speech.text_tokens import character_prompt

_TEXT = "Sure, I can help you with that."


@torch.no_grad()
def golden(folder: Path) -> dict[str, object]:
    """Greedy frames of one sentence without guidance, in float32 on the stored weights, and their loudness."""
    talker = load_talker(folder / "talker")
    prompt = character_prompt(_TEXT)
    (frames,) = speak(talker, [prompt], Sampling(top_k=1, guidance=1.0), seed=0)
    embedded = talker.embed_text_tokens(torch.tensor([prompt]))
    logits = talker.lm_head(talker.backbone_model(inputs_embeds=embedded).last_hidden_state[0, -1])
    samples = decode(load_codec(folder / "codec"), frames).reshape(-1, FRAME_SAMPLES)
    return {
        "text": _TEXT,
        "mode": "chars",
        "ids": prompt,
        "greedy_frames": frames.tolist(),
        "first_logits_head": [round(float(x), 4) for x in logits[:16]],
        "audio_rms_per_frame": [round(float(x), 5) for x in np.sqrt((samples**2).mean(1))],
        "note": "float32 arithmetic on the stored float16 weights, no guidance, argmax; "
        "end of audio follows the last frame",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, help="folder that `package` wrote")
    arguments = parser.parse_args()
    (arguments.weights / "golden.json").write_text(json.dumps(golden(arguments.weights)) + "\n")


if __name__ == "__main__":
    main()
