"""One side of `bench.llama`, in a process of its own: loads a model, then decodes a text for each line that it is sent.

Runs under any Python by its path, so that another engine can live in an environment of its own. The arguments are SIDE
FOLDER DTYPE THREADS TOKENS. What goes to the standard output is JSON lines: one when it is ready, one for each text.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT = "The history of the city of Paris begins"

Decode = Callable[[int], tuple[list[int], float, float]]
"""Tokens to make, and returned with the wall and CPU seconds from the first of them to the last."""


class _Watch:
    """Starts at the first token."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def token(self) -> None:
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()

    def stop(self) -> tuple[float, float]:
        assert self._began is not None
        return time.perf_counter() - self._began[0], time.process_time() - self._began[1]


def streamsynth(folder: str, dtype: str, threads: int) -> Decode:
    import torch

    from streamsynth.engine.kv.sizing import KvBudget
    from streamsynth.engine.sampler import SamplingParams
    from streamsynth.models.llama.detokenise import load_tokenizer
    from streamsynth.models.llama.generator import Piece, TextRequest
    from streamsynth.models.llama.loop import TextSizes, open_texts

    torch.set_num_threads(threads)
    texts = open_texts(Path(folder), KvBudget(128 << 20, None), TextSizes(), dtype=getattr(torch, dtype))
    tokenizer = load_tokenizer(Path(folder))
    prompt = tokenizer.encode(PROMPT).ids

    def decode(count: int) -> tuple[list[int], float, float]:
        sampling = SamplingParams(temperature=0.0)
        request = TextRequest(prompt=prompt, max_tokens=count, sampling=sampling, stop_tokens=frozenset())
        generation = texts.open(request)
        watch, tokens = _Watch(), []
        while generation.finish_reason is None:
            for _, piece in texts.step([generation]):
                watch.token()
                assert isinstance(piece, Piece)
                tokens.append(piece.token)
        return tokens, *watch.stop()

    return decode


def transformers(folder: str, dtype: str, threads: int) -> Decode:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.eval()
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids

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

    def decode(count: int) -> tuple[list[int], float, float]:
        streamer = Streamer()
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            streamer=streamer,
        )
        return out[0, ids.shape[1] :].tolist(), *streamer.watch.stop()

    return decode


def vllm(folder: str, dtype: str, threads: int) -> Decode:
    """In this very process, compiled as it is by default."""
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(threads)
    engine = LLM(model=folder, dtype=dtype, max_model_len=1024, max_num_seqs=8, enable_prefix_caching=False).llm_engine
    assert torch.get_num_threads() == threads, torch.get_num_threads()
    numbers = iter(range(1 << 30))

    def decode(count: int) -> tuple[list[int], float, float]:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        engine.add_request(str(next(numbers)), PROMPT, params)
        watch, tokens = _Watch(), []
        while engine.has_unfinished_requests():
            for output in engine.step():
                watch.token()
                tokens = list(output.outputs[0].token_ids)
        return tokens, *watch.stop()

    return decode


def memory(folder: str, dtype: str, threads: int) -> Decode:
    """Reads 1 GiB in one product, which is faster than a sum: the tokens are none, the seconds those of a GB."""
    import torch

    torch.set_num_threads(threads)
    matrix, vector = torch.ones(1 << 14, 1 << 14), torch.ones(1 << 14)

    def decode(count: int) -> tuple[list[int], float, float]:
        watch = _Watch()
        watch.token()
        torch.mv(matrix, vector)
        wall_s, cpu_s = watch.stop()
        return [], wall_s * 1e9 / matrix.nbytes, cpu_s * 1e9 / matrix.nbytes

    return decode


def main() -> None:
    side, folder, dtype, threads, tokens = sys.argv[1:]
    # Other engines print as they like: the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sides = {"streamsynth": streamsynth, "transformers": transformers, "vllm": vllm, "memory": memory}
    decode = sides[side](folder, dtype, int(threads))
    decode(8)
    answers.write("{}\n")
    answers.flush()
    for _ in sys.stdin:
        made, wall_s, cpu_s = decode(int(tokens) + 1)
        answers.write(json.dumps({"tokens": made, "wall_s": wall_s, "cpu_s": cpu_s}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
