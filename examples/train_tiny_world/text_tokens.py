"""The tokenizer: known words whole, anything else letter by letter. Written in the format of `tokenizers`."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from functools import cache

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from streamsynth.models.tiny_world.reading import known_words

TEXT_LENGTH = 40
"""What embeddings are padded to, and the most tokens of a prompt."""

_SPECIAL = ("<pad>", "</s>", "<unk>")


def _vocabulary() -> Iterator[str]:
    yield from _SPECIAL
    signs = string.ascii_lowercase + string.digits + ".,!?-'"
    yield from signs
    yield from (f"##{sign}" for sign in signs)
    yield from sorted(word for word in known_words() if len(word) > 1)


@cache
def tokenizer() -> Tokenizer:
    """Every prompt ends in `</s>`, so that no prompt at all is one token, as with UMT5."""
    tokens = {token: index for index, token in enumerate(_vocabulary())}
    made = Tokenizer(WordPiece(tokens, unk_token="<unk>", max_input_chars_per_word=40))
    made.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", tokens["</s>"])])
    return made


def encode(prompt: str) -> list[int]:
    """Raises ValueError for a prompt of more than `TEXT_LENGTH` tokens."""
    tokens: list[int] = tokenizer().encode(re.sub(r"\s+", " ", prompt)).ids
    if len(tokens) > TEXT_LENGTH:
        raise ValueError(f"a prompt of {len(tokens)} tokens; {TEXT_LENGTH} at most")
    return tokens
