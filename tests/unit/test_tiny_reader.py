"""tiny-speech's front end: what becomes a passage, when, with which pause behind it, in either alphabet."""

from __future__ import annotations

import json

import pytest

from streamsynth.engine.passage import Passage
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.tiny_speech.lexicon import Lexicon, as_phonemes
from streamsynth.models.tiny_speech.places import weights_folder
from streamsynth.models.tiny_speech.prompts import MAX_SYMBOLS, TinyReader, Vocabulary, Voice, pause_frames
from streamsynth.models.tiny_speech.reading import Alphabet, open_reading
from streamsynth.speech import Granularity
from streamsynth.text.boundaries import Ending

TEXT = "On March 3rd, 2019, it cost $12.50; that's fair: Dr. Brown paid. Then the U.S. won - 3 to 1! Why?"
CODEBOOKS = 6


@pytest.fixture(scope="module", params=list(Alphabet))
def voice(request: pytest.FixtureRequest) -> Voice:
    vocabulary = Vocabulary(weights_folder(), request.param, CODEBOOKS)
    return Voice(vocabulary, open_reading(request.param, vocabulary.symbols), guided=True)


def read(voice: Voice, pieces: list[str], granularity: Granularity) -> list[Passage]:
    reader = TinyReader(voice, granularity)
    for piece in pieces:
        reader.push(piece)
    reader.finish()
    passages = list(iter(reader.take, None))
    assert reader.exhausted
    return passages


def shown(passages: list[Passage]) -> list[tuple[object, ...]]:
    return [(p.prompts[0].tolist(), p.segment, p.text, p.ends_segment, p.pause, p.max_frames) for p in passages]


@pytest.mark.parametrize("granularity", list(Granularity))
def test_passages_do_not_depend_on_how_the_text_came(voice: Voice, granularity: Granularity) -> None:
    at_once = read(voice, [TEXT], granularity)
    assert shown(read(voice, list(TEXT), granularity)) == shown(at_once)
    assert "".join(p.text or "" for p in at_once if granularity is not Granularity.NONE) in (TEXT, "")


def test_a_clause_is_spoken_when_it_is_certain_and_a_number_when_it_is_complete(voice: Voice) -> None:
    reader = TinyReader(voice, Granularity.CLAUSE)
    reader.push("After the long walk, we paid 12")
    first = reader.take()
    assert first is not None
    assert first.text == "After the long walk, "
    assert reader.take() is None
    reader.push(",")
    assert reader.take() is None, "it may become 12,500"
    reader.push("500 euros, and")
    second = reader.take()
    assert second is not None
    assert second.text == "we paid 12,500 euros, "


def test_without_containers_nothing_is_spoken_before_the_text_is_complete(voice: Voice) -> None:
    """SP: a flush is one synthesis request, also where it is refused."""
    reader = TinyReader(voice, Granularity.NONE)
    reader.push("One. Two. ")
    assert reader.take() is None
    reader.push("Привет")
    with pytest.raises(StreamSynthError, match="Привет") as refused:
        reader.finish()
    assert refused.value.code is ErrorCode.UNSUPPORTED_LANGUAGE
    (first, second) = read(voice, ["One. Two."], Granularity.NONE)
    assert (first.text, first.segment, second.segment) == ("One. Two.", 0, 0)
    assert not second.ends_segment, "the end of the utterance ends it"


def test_what_comes_before_a_refused_word_is_there_to_be_spoken(voice: Voice) -> None:
    reader = TinyReader(voice, Granularity.SENTENCE)
    reader.push("One. Привет two. Three. ")
    first = reader.take()
    assert first is not None
    assert first.text == "One. "
    with pytest.raises(StreamSynthError, match="Привет"):
        reader.take()


def test_pauses_are_those_of_the_marks(voice: Voice) -> None:
    passages = read(voice, ["We went to town, and that took long; it rained. Yes."], Granularity.CLAUSE)
    endings = (Ending.COMMA, Ending.SEMICOLON, Ending.SENTENCE, Ending.SENTENCE)
    assert [passage.pause for passage in passages] == [pause_frames(ending) for ending in endings]


def test_a_long_sentence_is_spoken_in_parts_of_one_segment(voice: Voice) -> None:
    text = "word " * 70 + "end."
    passages = read(voice, [text], Granularity.SENTENCE)
    assert len(passages) > 2
    assert {passage.segment for passage in passages} == {0}
    assert [passage.ends_segment for passage in passages] == [False] * (len(passages) - 1) + [True]
    assert all(len(passage.prompts[0]) <= MAX_SYMBOLS + 3 for passage in passages)


def test_a_passage_may_not_run_on_without_end(voice: Voice) -> None:
    """S65: a cap by the length of the text."""
    short, long = read(
        voice, ["Hi. " + "This sentence has quite a few more words in it than that."], Granularity.SENTENCE
    )
    assert short.max_frames == 50
    assert 200 < long.max_frames < 400


@pytest.mark.parametrize("text", ["", "...", "🙂 (!)", " \n"])
def test_text_without_sound_is_no_passage(voice: Voice, text: str) -> None:
    assert read(voice, [text], Granularity.NONE) == []


def test_each_row_of_a_guided_passage_has_its_prompt(voice: Voice) -> None:
    (passage,) = read(voice, ["Hello."], Granularity.SENTENCE)
    assert [len(prompt) > 3 for prompt in passage.prompts] == [True, False]
    assert passage.prompts[0].shape[1] == 1 + CODEBOOKS


def test_an_alphabet_that_is_not_there_is_refused() -> None:
    with pytest.raises(StreamSynthError, match="phonemes, characters"):
        Alphabet.named("letters")


def test_words_of_the_lexicon_are_pronounced_and_the_others_spelled() -> None:
    vocabulary = Vocabulary(weights_folder(), Alphabet.CHARACTERS, CODEBOOKS)
    symbols = open_reading(Alphabet.CHARACTERS, vocabulary.symbols)("The decade, zyrk!")
    ids = json.loads((weights_folder() / "vocab.json").read_text())
    the, zyrk = ([ids["chars"][letter] for letter in word] for word in ("the", "zyrk"))
    decade = [ids["phonemes"][phoneme] for phoneme in "dˈɛkˌAd"]
    space, comma, stop = (ids["chars"][mark] for mark in " ,!")
    expected = [1, 4, *the, space, 3, *decade, comma, space, 4, *zyrk, stop, 2]
    assert vocabulary.prompt(symbols)[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("cat's", "kˈæts"),
        ("dog's", "dˈɔɡz"),
        ("fox's", "fˈɑksᵻz"),
        ("decade-cat,", "dˈɛkˌAd kˈæt,"),
        ("zyrk-cat", None),
        ("zyrk's", None),
    ],
)
def test_the_lexicon_derives_possessives_and_compounds(word: str, read: str | None) -> None:
    lexicon = Lexicon(weights_folder() / "lexicon.tsv.gz")
    said = "".join(sign if sign in " ,-" else as_phonemes(sign) for sign in read or "")
    assert lexicon(word) == (said or word)
