"""One side of `bench.llama`, in a process of its own: loads a model, then decodes a text for each line that it is sent.

Runs under any Python by its path, so that another engine can live in an environment of its own. The arguments are SIDE
FOLDER DTYPE THREADS TOKENS TEMPERATURE; a line is the number of a text. What goes to the standard output is JSON lines:
one when it is ready, one for each text.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TEXTS = (
    "The history of the city of Paris begins",
    "Dear Anna,\nThank you for your letter of last week.",
    "To make a good vegetable soup, first",
    "The main difference between a virus and a bacterium is",
    'def read_lines(path):\n    """Return the lines of a text file without their ends."""\n',
    "In the summer of 1914, a young doctor",
    "Q: Why is the sky blue?\nA:",
    "The committee met on Tuesday to discuss the new budget. According to the minutes, ",
)
TOP_K = 50
"""Where tokens are drawn at all."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Wall and CPU seconds are from the first token to the last, and `passes` those through the weights meanwhile."""

    tokens: list[int]
    wall_s: float
    cpu_s: float
    passes: int


Decode = Callable[[int, int], Decoded]
"""Of a text, so many tokens."""


class _Watch:
    """Starts at the first token."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def token(self) -> None:
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()

    def stop(self, tokens: list[int], passes: int) -> Decoded:
        assert self._began is not None
        wall_s, cpu_s = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return Decoded(tokens=tokens, wall_s=wall_s, cpu_s=cpu_s, passes=passes)


def streamsynth(folder: str, dtype: str, threads: int, temperature: float, guesses: int | None = None) -> Decode:
    import torch

    from streamsynth.engine.kv.sizing import KvBudget
    from streamsynth.engine.sampler import SamplingParams
    from streamsynth.models.llama.detokenise import load_tokenizer
    from streamsynth.models.llama.generator import Piece, TextRequest
    from streamsynth.models.llama.loop import TextSizes, open_texts

    torch.set_num_threads(threads)
    sizes = TextSizes(guesses=guesses)
    texts = open_texts(Path(folder), KvBudget(128 << 20, None), sizes, dtype=getattr(torch, dtype))
    tokenizer = load_tokenizer(Path(folder))

    def decode(text: int, count: int) -> Decoded:
        sampling = SamplingParams(temperature=temperature, top_k=TOP_K, seed=text)
        prompt = tokenizer.encode(TEXTS[text]).ids
        generation = texts.open(
            TextRequest(prompt=prompt, max_tokens=count, sampling=sampling, stop_tokens=frozenset())
        )
        watch, tokens, passes = _Watch(), [], -1
        while generation.finish_reason is None:
            passes += 1
            for _, piece in texts.step([generation]):
                watch.token()
                assert isinstance(piece, Piece)
                tokens.append(piece.token)
        return watch.stop(tokens, passes)

    return decode


def one_by_one(folder: str, dtype: str, threads: int, temperature: float) -> Decode:
    return streamsynth(folder, dtype, threads, temperature, guesses=0)


def transformers(folder: str, dtype: str, threads: int, temperature: float) -> Decode:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": TOP_K} if temperature else {"do_sample": False}

    class Streamer:
        """Is given the prompt first, then each token."""

        def __init__(self) -> None:
            self.watch = _Watch()
            self._prompt = True

        def put(self, value: Any) -> None:
            if not self._prompt:
                self.watch.token()
            self._prompt = False

        def end(self) -> None: ...

    def decode(text: int, count: int) -> Decoded:
        ids = tokenizer(TEXTS[text], return_tensors="pt").input_ids
        torch.manual_seed(text)
        streamer = Streamer()
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            pad_token_id=0,
            streamer=streamer,
            **sampling,
        )
        return streamer.watch.stop(out[0, ids.shape[1] :].tolist(), count - 1)

    return decode


def vllm(folder: str, dtype: str, threads: int, temperature: float) -> Decode:
    """In this very process, compiled as it is by default."""
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(threads)
    engine = LLM(model=folder, dtype=dtype, max_model_len=1024, max_num_seqs=8, enable_prefix_caching=False).llm_engine
    assert torch.get_num_threads() == threads, torch.get_num_threads()
    numbers = iter(range(1 << 30))

    def decode(text: int, count: int) -> Decoded:
        params = SamplingParams(temperature=temperature, top_k=TOP_K, seed=text, max_tokens=count, ignore_eos=True)
        engine.add_request(str(next(numbers)), TEXTS[text], params)
        watch, tokens = _Watch(), []
        while engine.has_unfinished_requests():
            for output in engine.step():
                watch.token()
                tokens = list(output.outputs[0].token_ids)
        return watch.stop(tokens, count - 1)

    return decode


def memory(folder: str, dtype: str, threads: int, temperature: float) -> Decode:
    """Reads 1 GiB in one product, which is faster than a sum: the tokens are none, the seconds those of a GB."""
    import torch

    torch.set_num_threads(threads)
    matrix, vector = torch.ones(1 << 14, 1 << 14), torch.ones(1 << 14)

    def decode(text: int, count: int) -> Decoded:
        watch = _Watch()
        watch.token()
        torch.mv(matrix, vector)
        read = watch.stop([], 1)
        scale = 1e9 / matrix.nbytes
        return Decoded(tokens=[], wall_s=read.wall_s * scale, cpu_s=read.cpu_s * scale, passes=1)

    return decode


SIDES = {
    "streamsynth": streamsynth,
    "streamsynth, one by one": one_by_one,
    "transformers": transformers,
    "vllm": vllm,
    "memory": memory,
}


def main() -> None:
    side, folder, dtype, threads, tokens, temperature = sys.argv[1:]
    # Other engines print as they like: the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    decode = SIDES[side](folder, dtype, int(threads), float(temperature))
    decode(0, 8)
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(asdict(decode(int(line), int(tokens) + 1))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
