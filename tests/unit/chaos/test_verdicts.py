from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.transcript import Answer, Choice
from tests.chaos.verdicts import MAX_EXAMPLES, MAX_SHIFT, SHIFT_WINDOW, Example, Outcome, Tally, Verdict, judge

TOKENS = list(range(100, 140))


def answer(
    token_ids: list[int], text: str = "text", *, is_whole: bool = True, num_counted: int | None = None
) -> Answer:
    usage = {
        "completion_tokens": len(token_ids) if num_counted is None else num_counted,
        "prompt_tokens": 7,
    }
    return Answer({0: Choice(text, token_ids, [], "length")}, usage, is_whole=is_whole)


EXPECTED = answer(TOKENS)


def test_the_same_is_exact() -> None:
    assert judge(answer(list(TOKENS)), EXPECTED) == Verdict(Outcome.EXACT)


def test_a_stream_without_its_end_is_lost() -> None:
    cut = Answer({0: Choice("te", TOKENS[:5])}, error={"code": "engine_dead"})
    assert judge(cut, EXPECTED) == Verdict(Outcome.LOST, "after 5 tokens: {'code': 'engine_dead'}")
    assert judge(Answer(), EXPECTED) == Verdict(Outcome.LOST, "after 0 tokens: the stream ended")


def test_a_count_that_is_not_due_is_a_token_lost_or_doubled() -> None:
    for got in (answer(TOKENS[:-1]), answer([*TOKENS, 1]), answer(TOKENS, num_counted=39)):
        assert judge(got, EXPECTED).outcome is Outcome.WRONG_TOKENS


def test_wrong_text_of_right_tokens_is_lost_or_doubled_text() -> None:
    verdict = judge(answer(TOKENS, "tetext"), EXPECTED)
    assert verdict == Verdict(Outcome.WRONG_TOKENS, "right token ids, wrong text: 'tetext'; due 'text'")


@given(st.integers(0, len(TOKENS) - SHIFT_WINDOW - MAX_SHIFT), st.integers(1, MAX_SHIFT))
def test_tokens_that_are_missing_are_seen_although_the_count_is_right(place: int, num_lost: int) -> None:
    got = TOKENS[:place] + TOKENS[place + num_lost :] + list(range(num_lost))
    assert judge(answer(got), EXPECTED) == Verdict(Outcome.WRONG_TOKENS, f"{num_lost} lost at {place}")


@given(st.integers(MAX_SHIFT, len(TOKENS) - SHIFT_WINDOW - MAX_SHIFT), st.integers(1, MAX_SHIFT))
def test_tokens_that_came_twice_are_seen_although_the_count_is_right(place: int, num_doubled: int) -> None:
    got = (TOKENS[:place] + TOKENS[place - num_doubled :])[: len(TOKENS)]
    assert judge(answer(got), EXPECTED) == Verdict(Outcome.WRONG_TOKENS, f"{num_doubled} doubled at {place}")


@given(st.integers(0, len(TOKENS) - 1))
def test_another_continuation_is_a_divergence(place: int) -> None:
    got = TOKENS[:place] + list(range(len(TOKENS) - place))
    verdict = judge(answer(got, "other"), EXPECTED)
    assert verdict == Verdict(Outcome.DIVERGED, f"at {place}: 0 instead of {TOKENS[place]}")


def test_the_tally_keeps_the_first_examples_of_each_outcome_but_the_best() -> None:
    tally = Tally()
    for number in range(MAX_EXAMPLES + 2):
        tally.count(float(number), "exact", Verdict(Outcome.EXACT), 10, 0.5)
        tally.count(float(number), "cut", Verdict(Outcome.CUT), 3, 9.0)
    tally.count(50.0, "lost", Verdict(Outcome.LOST, "hung"), 5, 90.0)
    total = MAX_EXAMPLES + 2
    assert tally.outcomes == {Outcome.EXACT: total, Outcome.CUT: total, Outcome.LOST: 1}
    assert (tally.num_tokens, tally.longest_gap_s) == (10 * total, 0.5)
    assert len(tally.examples) == MAX_EXAMPLES + 1
    assert tally.examples[-1] == Example(50.0, "lost", Verdict(Outcome.LOST, "hung"))
