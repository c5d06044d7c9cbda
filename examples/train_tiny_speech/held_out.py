"""What training is judged by: held-out utterances alone, and segments with the chain before them and without it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from train_tiny_speech.code_store import CodedUtterance
from train_tiny_speech.documents import Document, PromptMix, Segment, cut_up, fitting, last_judged, sentences_of
from train_tiny_speech.talker_batches import PackedBatch, pack_all
from train_tiny_speech.text_tokens import phoneme_prompt

_READINGS = {"characters": PromptMix(0, 1, 0), "phonemes": PromptMix(0, 0, 1), "mixed": PromptMix(0, 0, 0)}


def held_out_checks(utterances: Sequence[CodedUtterance], rows: int, length: int) -> dict[str, list[PackedBatch]]:
    """In phonemes where nothing else is said. What is compared is the same segments, with and without context."""
    sentences = [sentence for utterance in utterances for sentence in sentences_of(utterance)]
    rng = np.random.default_rng(1)
    shuffled = [sentences[i] for i in rng.permutation(len(sentences))]
    documents = {
        f"alone, {name}": [mix.document([sentence], rng) for sentence in sentences] for name, mix in _READINGS.items()
    }
    chains = {
        "cut at its pauses": [_chain(cut_up(u, u.cuts)) for u in utterances if u.cuts],
        "behind another utterance": [_chain(pair) for pair in pairwise(shuffled)],
    }
    for name, some in chains.items():
        judged = [last_judged(chain[: n + 1]) for chain in some for n in range(1, len(chain))]
        judged = [document for document in judged if len(fitting(document, length)) == len(document)]
        documents[f"{name}, with context"] = judged
        documents[f"{name}, without"] = [document[-1:] for document in judged]
    return {name: pack_all(some, rows, length) for name, some in documents.items()}


def _chain(pieces: Sequence[CodedUtterance]) -> Document:
    return [Segment(phoneme_prompt(piece.phonemes), piece.codes) for piece in pieces]
