from __future__ import annotations

from tests.bench.load_client import LoadedRequest, LoadReport
from tests.bench.results import Figure
from tests.bench.server import BenchServer
from tests.bench.stages import CEILING_STAGES, MODEL_STAGES, CeilingStage, PrefillStage, Stage, figures_of

SERVER = BenchServer("us", "bf16", ["serve"], {}, "a-model", 8000, {"ignore_eos": True})


def report(stage: Stage, ttfts_us: list[int], gaps_us: list[int]) -> LoadReport:
    requests = [
        LoadedRequest(0, 200, 0, ttft_us, 0, 1, stage.max_tokens, stage.prompt_tokens, True, "", gaps_us)
        for ttft_us in ttfts_us
    ]
    return LoadReport(2.0, 0.001, requests)


def test_a_stage_asks_with_prompts_of_the_exact_length() -> None:
    stage = Stage("two", num_streams=2, requests_each=2, prompt_tokens=5, max_tokens=3, fields={"temperature": 1.0})
    bodies = stage.bodies(SERVER, list(range(100)))
    assert [len(body.pop("prompt")) for body in bodies] == [5, 5, 5, 5]
    assert (
        bodies
        == [
            {
                "model": "a-model",
                "max_tokens": 3,
                "temperature": 1.0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "ignore_eos": True,
            }
        ]
        * 4
    )


def test_the_figures_of_a_stage() -> None:
    stage = Stage("two", num_streams=2, requests_each=1, max_tokens=50)
    assert stage.values(report(stage, [30_000, 50_000], list(range(1000, 101_000, 1000)))) == {
        "output, two": 50.0,
        "first token, two": 40.0,
        "between tokens p50, two": 50.0,
        "between tokens p99, two": 99.0,
    }


def test_prefill_is_the_time_to_the_only_token() -> None:
    stage = PrefillStage("prefill", num_streams=1, requests_each=3, prompt_tokens=512)
    assert stage.max_tokens == 1
    assert stage.values(report(stage, [256_000, 9_000_000, 200_000], [])) == {"prefill 512": 2000.0}


def test_a_ceiling_counts_what_the_client_took() -> None:
    stage = CeilingStage("two", num_streams=2, requests_each=1, max_tokens=50)
    assert stage.values(report(stage, [1, 1], [])) == {
        "frontend ceiling, two": 50.0,
        "load client's own CPU, two": 10.0,
    }


def test_every_row_has_a_name_of_its_own() -> None:
    names = [figure.name for figure in figures_of([*MODEL_STAGES, *CEILING_STAGES])]
    assert len(set(names)) == len(names) == 4 * 4 + 2 + 3 * 2


def test_figures_of_stages_keep_their_order() -> None:
    assert figures_of(MODEL_STAGES[4:]) == [
        Figure("prefill 512", "tokens/s", "higher"),
        Figure("prefill 1024", "tokens/s", "higher"),
    ]
