"""Text from tokens as they come: whole characters only, and joined it is what decoding everything at once gives."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from streamsynth.errors import StreamSynthError
from streamsynth.models.llama.detokenise import Detokeniser, StopStrings, TokenBytes, load_tokenizer

LETTERS = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
"""GPT-2's letters for the 256 bytes."""


def byte_level() -> Tokenizer:
    """All bytes, some longer tokens that cut characters anywhere, special and other added tokens."""
    cut = ["Ġt", "ä½", "½ł", "ðŁ", "ĺĢ"]
    vocabulary = {token: number for number, token in enumerate([*LETTERS, *cut])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("to ol", special=False), AddedToken("héllo", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2's: spaces are drawn, unknown characters are spelled in bytes, and the first space is none."""
    words = ["\u2581", "\u2581the", "x", "é", "\u2581\u2581a"]
    vocabulary = {token: number for number, token in enumerate([*[f"<0x{byte:02X}>" for byte in range(256)], *words])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


LEVEL, FALLBACK = byte_level(), byte_fallback()
LEVEL_BYTES, FALLBACK_BYTES = TokenBytes(LEVEL), TokenBytes(FALLBACK)
BY_BYTE = {LEVEL_BYTES[LEVEL.token_to_id(letter)]: LEVEL.token_to_id(letter) for letter in LETTERS}


def pieces(table: TokenBytes, tokens: Sequence[int]) -> list[str]:
    detokeniser = Detokeniser(table)
    return [*(detokeniser.push(token) for token in tokens), detokeniser.finish()]


@given(st.lists(st.integers(0, LEVEL.get_vocab_size() - 1), max_size=40))
def test_pieces_joined_are_the_text_of_the_whole_whatever_the_bytes(tokens: list[int]) -> None:
    assert "".join(pieces(LEVEL_BYTES, tokens)) == LEVEL.decode(tokens, skip_special_tokens=True)


@given(st.text(max_size=20), st.lists(st.sampled_from(["\u2581", "\u2581the", "x", "é", "\u2581\u2581a"]), max_size=8))
def test_the_same_with_byte_fallback(spelled: str, words: list[str]) -> None:
    said = [FALLBACK.token_to_id(word) for word in words]
    tokens = [*said, *spelled.encode(), *said]
    assert "".join(pieces(FALLBACK_BYTES, tokens)) == FALLBACK.decode(tokens)


@given(st.text(max_size=20))
def test_no_piece_ends_inside_a_character(text: str) -> None:
    made = pieces(LEVEL_BYTES, [BY_BYTE[bytes([byte])] for byte in text.encode()])
    assert made[-1] == ""
    assert "".join(made) == text
    assert all(len(piece) <= 1 for piece in made)


def test_a_character_that_is_never_completed_is_said_at_the_end() -> None:
    assert pieces(LEVEL_BYTES, [LEVEL.token_to_id("ä½")]) == ["", "\ufffd"]


def test_special_tokens_and_tokens_beyond_the_vocabulary_have_no_text() -> None:
    tokens = LEVEL_BYTES
    assert tokens[LEVEL.token_to_id("<|end|>")] == b""
    assert tokens[LEVEL.token_to_id("to ol")] == b"to ol"
    assert tokens[10_000] == b""


def test_another_decoder_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(StreamSynthError, match="WordPiece"):
        TokenBytes(tokenizer)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamSynthError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


@given(st.lists(st.text("abc", max_size=4), max_size=8), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_text_goes_on_up_to_the_first_stop_string_however_it_is_cut(parts: list[str], stops: list[str]) -> None:
    scanner = StopStrings(stops)
    passed = [scanner.push(part) for part in parts]
    whole = "".join(parts)
    if scanner.found:
        # The first end of a stop string is what stops: what comes after it was not known then.
        assert any(whole.startswith("".join(passed) + stop) for stop in stops)
    else:
        assert not any(stop in whole for stop in stops)
        assert "".join(passed) + scanner.finish() == whole
