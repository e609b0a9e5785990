"""`LLM.generate` on the work of the served rows, in a process of its own.

`python -m tests.bench.offline MODEL_FOLDER DTYPE`. One JSON object on stdout: the figure's name → its value.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.bench.contestants import MAX_NUM_SEQS
from tests.bench.prompts import make_prompts, word_ids
from tests.bench.results import Figure

NUM_PROMPTS, PROMPT_TOKENS, MAX_TOKENS = 32, 128, 64
OFFLINE = Figure("offline, 32 prompts", "tokens/s", "higher")


def generate_rate(folder: Path, dtype: str) -> float:
    """Output tokens a second of one `generate` call; the model is loaded and warm before the clock starts."""
    from roundhouse import LLM, SamplingParams

    words = word_ids(folder)
    llm = LLM(model=str(folder), dtype=dtype, max_num_seqs=MAX_NUM_SEQS)
    for name, num_prompts, max_tokens in (("warm-up", 8, 8), ("offline", NUM_PROMPTS, MAX_TOKENS)):
        prompts = make_prompts(words, num_prompts, PROMPT_TOKENS, seed=name)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        started = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
        seconds = time.perf_counter() - started
    counts = [len(output.outputs[0].token_ids) for output in outputs]
    assert counts == [MAX_TOKENS] * NUM_PROMPTS, f"answers of {sorted(set(counts))} tokens"
    return NUM_PROMPTS * MAX_TOKENS / seconds


if __name__ == "__main__":
    print(json.dumps({OFFLINE.name: generate_rate(Path(sys.argv[1]), sys.argv[2])}))
