"""`--deterministic` through the whole engine: every bit of a request is that of its undisturbed run.

Batch mates, chunks, preemption, prefix-cache hits, and outputs of another engine that a prefill computes again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.engine.build import BuiltEngine
from roundhouse.model_store import load_tokenizer
from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.sampling import SamplingParams
from tests.support.deterministic_core import Bits, Wanted, deterministic_engine, run_all
from tests.support.prompts import varied_prompts
from tests.support.tiny_models import VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.timeout(600)

NUM_TOKENS = 9
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=4, seed=0)
DRAWN = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    repetition_penalty=1.1,
    frequency_penalty=0.3,
    max_tokens=NUM_TOKENS,
    ignore_eos=True,
    logprobs=4,
    seed=77,
)


class Engines:
    """The same model in four engines: an untouched one, and three that chunk, preempt or have caches."""

    SETTINGS = (
        {"max_num_batched_tokens": 7},
        {"num_blocks": 40, "max_num_batched_tokens": 40},
        {"num_blocks": 40, "max_num_batched_tokens": 64, "prefix_caching": False, "max_num_seqs": 5},
    )

    def __init__(self, folder: Path, dtype: str) -> None:
        common = {"dtype": dtype, "block_size": 4, "max_model_len": 128, "num_threads": 1}
        self.untouched = deterministic_engine(folder, **common, prefix_caching=False).core
        self.others = [deterministic_engine(folder, **common, **settings).core for settings in self.SETTINGS]

    def undisturbed(self, prompt: list[int], params: SamplingParams) -> Bits:
        return run_all(self.untouched, [Wanted(prompt, params)])[0]


@pytest.fixture(scope="module", params=["llama-float32", "qwen3-bfloat16", "gemma3-sliding-bfloat16"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    family, _, dtype = request.param.rpartition("-")
    folder = tmp_path_factory.mktemp(family)
    tiny_model(family, paged=False).save_pretrained(folder)
    return Engines(folder, dtype)


@settings(max_examples=8)
@given(data=st.data(), dice=st.randoms(use_true_random=False))
def test_any_history_gives_the_same_bits(engines: Engines, data: st.DataObject, dice: random.Random) -> None:
    core = engines.others[data.draw(st.integers(0, len(engines.others) - 1), label="engine")]
    shared = [5, 9, 13, 17] * 4
    requests: list[tuple[Wanted, Bits]] = []
    for _ in range(data.draw(st.integers(1, 7), label="requests")):
        prompt = shared[: dice.choice([0, 8, 16])] + [dice.randrange(4) for _ in range(dice.randint(1, 30))]
        params = dice.choice([GREEDY, DRAWN])
        bits = engines.undisturbed(prompt, params)
        delivered = bits.token_ids[: dice.choice([0, dice.randrange(NUM_TOKENS)])]
        requests.append((Wanted(prompt, params, delivered), bits))
    found = run_all(core, [wanted for wanted, _ in requests])
    for (wanted, bits), ours in zip(requests, found, strict=True):
        assert ours.since(0) == bits.since(len(wanted.delivered))


def test_a_resume_at_every_index(engines: Engines) -> None:
    """All at once, on an engine that has to preempt them."""
    prompt = [(11 * place) % VOCAB_SIZE for place in range(30)]
    bits = engines.undisturbed(prompt, DRAWN)
    indexes = range(NUM_TOKENS)
    found = run_all(engines.others[1], [Wanted(prompt, DRAWN, bits.token_ids[:index]) for index in indexes])
    assert [ours.since(0) for ours in found] == [bits.since(index) for index in indexes]


def test_a_model_with_experts_is_refused(tmp_path: Path) -> None:
    tiny_model("mixtral-experts", paged=False).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="MixtralForCausalLM has experts"):
        deterministic_engine(tmp_path, block_size=4, max_model_len=None)


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path) -> BuiltEngine:
    return deterministic_engine(smollm2_folder)


@pytest.fixture(scope="module")
def other_smollm2(smollm2_folder: Path) -> BuiltEngine:
    """With small steps, and hardly more blocks than its longest request needs."""
    return deterministic_engine(smollm2_folder, max_num_batched_tokens=50, num_blocks=60, max_num_seqs=9)


@pytest.fixture(scope="module")
def subjects(smollm2: BuiltEngine, smollm2_folder: Path) -> list[tuple[Wanted, Bits]]:
    """Five requests with what they get alone; two of them grow over 128 and over 512 tokens."""
    tokenizer = load_tokenizer(smollm2_folder)
    long = next(prompt for prompt in varied_prompts(tokenizer) if len(prompt) >= 513)
    prompts = [
        tokenizer.encode("The capital of France is"),
        long[:37],
        long[:122],
        long[:506],
        tokenizer.encode("a"),
    ]
    wanted = [Wanted(prompt, DRAWN if place % 2 else GREEDY) for place, prompt in enumerate(prompts)]
    return [(one, run_all(smollm2.core, [one])[0]) for one in wanted]


def test_both_engines_take_each_others_streams(smollm2: BuiltEngine, other_smollm2: BuiltEngine) -> None:
    assert smollm2.kernel_path.startswith("tiled-")
    assert smollm2.kernel_path == other_smollm2.kernel_path


def test_smollm2_in_a_batch_of_sixteen(smollm2: BuiltEngine, subjects: list[tuple[Wanted, Bits]]) -> None:
    mates = [Wanted(list(range(10 + place, 10 + 7 * place)), DRAWN) for place in range(1, 12)]
    wanted = [one for one, _ in subjects]
    found = run_all(smollm2.core, [*mates[:4], *wanted[::-1], *mates[4:]])[4 : 4 + len(wanted)][::-1]
    assert [ours.since(0) for ours in found] == [bits.since(0) for _, bits in subjects]
    assert sum(ours.num_cached_tokens for ours in found) > 0


def test_smollm2_in_chunks_with_preemption_and_resumed(
    other_smollm2: BuiltEngine, subjects: list[tuple[Wanted, Bits]]
) -> None:
    cases = [
        (one, bits, index)
        for one, bits in subjects
        for index in ((5,) if len(one.prompt) > 500 else (0, 1, NUM_TOKENS - 1))
    ]
    found = run_all(
        other_smollm2.core, [Wanted(one.prompt, one.params, bits.token_ids[:index]) for one, bits, index in cases]
    )
    assert [ours.since(0) for ours in found] == [bits.since(index) for _, bits, index in cases]
