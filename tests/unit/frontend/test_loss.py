from roundhouse.frontend.loss import DEADLY, LossCause


def test_the_names_are_those_of_the_metrics_label() -> None:
    assert [str(cause) for cause in LossCause] == [
        "died",
        "unreachable",
        "gap",
        "replaced",
        "stalled",
        "overrun",
        "drained",
        "revoked",
    ]


def test_what_a_request_may_have_brought_about() -> None:
    assert {LossCause.DIED, LossCause.UNREACHABLE, LossCause.REPLACED} == DEADLY
