"""A template that does not end, ends."""

import time
from typing import Any

import jinja2
import pytest

from roundhouse.model_store import template_budget
from roundhouse.model_store.chat_template import ChatTemplate
from roundhouse.model_store.errors import ChatTemplateTooExpensive
from roundhouse.model_store.template_environment import new_environment

HI = [{"role": "user", "content": "hi"}]
ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that write": "{% for a in range(99999) %}{% for b in range(99999) %}a{% endfor %}{% endfor %}",
    "loops in a block": "{% set x %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% endset %}",
    "loops with a test": "{% for a in range(99999) if a %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "loops that know their length": "{% for a in range(99999) %}{% for b in range(9999) %}{{ loop.length }}{% endfor %}"
    "{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a loop that calls itself": "{% for a in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}",
    "a number": "{{ 9 ** (9 ** 9) }}",
    "a text": "{{ 'a' * 10 ** 10 }}",
    "a list": "{{ 10 ** 10 * [1] }}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_it_ends_soon(source: str) -> None:
    started = time.monotonic()
    with pytest.raises(ChatTemplateTooExpensive, match="does not end"):
        ChatTemplate({"default": source}, {}).render(HI, max_s=0.05)
    assert time.monotonic() - started < template_budget.MAX_RENDER_S


def test_what_it_writes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_RENDERED_CHARS", 1000)
    template = ChatTemplate({"default": "{% for a in range(n) %}{{ 'a' * 10 }}{% endfor %}"}, {})
    assert template.render(HI, template_kwargs={"n": 100}) == "a" * 1000
    with pytest.raises(ChatTemplateTooExpensive, match="it writes more than 1000 characters"):
        template.render(HI, template_kwargs={"n": 101})


def test_a_deadline_is_of_one_rendering() -> None:
    template = ChatTemplate({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {})
    with pytest.raises(ChatTemplateTooExpensive):
        template.render(HI, max_s=-1.0)
    assert template.render(HI) == "hi"


@pytest.mark.parametrize(
    ("source", "values"),
    [
        (
            "{% for a in x %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem }};{% endfor %}",
            {"x": [1, 2]},
        ),
        ("{% for a in x %}{{ a }}{% else %}none{% endfor %}", {"x": []}),
        ("{% for a in nothing %}{{ a }}{% else %}none{% endfor %}", {}),
        ("{% for k in x %}{{ k }}{% endfor %}", {"x": {"a": 1, "b": 2}}),
        ("{% for k, v in x.items() %}{{ k }}{{ v }}{{ loop.revindex }}{% endfor %}", {"x": {"a": 1, "b": 2}}),
        ("{% for a in x if a > 1 %}{{ a }}{{ loop.first }}{{ loop.changed(a) }}{% endfor %}", {"x": [1, 2, 3]}),
        (
            "{% for a in x recursive %}{{ a.n }}{{ loop.depth }}{% if a.c %}({{ loop(a.c) }}){% endif %}{% endfor %}",
            {"x": [{"n": 1, "c": [{"n": 2}, {"n": 3}]}]},
        ),
        (
            "{% for a in 'abc' %}{% if a == 'b' %}{% continue %}{% endif %}{{ loop.cycle('x', a) }}{% endfor %}",
            {},
        ),
        ("{{ 3 * 4 }}{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 2.5 * 2 }}{{ '-' * n }}{{ 2 ** 0.5 }}", {"n": 0}),
    ],
    ids=range(9),
)
def test_nothing_else_changes(source: str, values: dict[str, Any]) -> None:
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    assert new_environment().from_string(source).render(values) == plain.from_string(source).render(values)
