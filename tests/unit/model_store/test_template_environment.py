from typing import Any

import jinja2
import pytest

from roundhouse.model_store.template_environment import new_environment


def render(source: str, **values: Any) -> str:
    return new_environment().from_string(source).render(values)


def test_blocks_leave_no_lines_behind() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ x | tojson }}", x={"a": "<é & 'b'>"}) == '{"a": "<é & \'b\'>"}'
    assert render("{{ x | tojson(indent=1, sort_keys=true) }}", x={"b": 1, "a": 2}) == '{\n "a": 2,\n "b": 1\n}'


def test_loop_controls_and_generation_marks_work() -> None:
    source = (
        "{% for i in x %}{% if i == 2 %}{% break %}{% endif %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}"
    )
    assert render(source, x=[1, 2, 3]) == "1"


def test_namespace_and_dict_work_as_in_jinja() -> None:
    assert render("{% set n = namespace(a=1, self=2) %}{% set n.a = 3 %}{{ n.a }}{{ n.self }}") == "32"
    assert render("{{ dict(a=1).a }}{{ dict.fromkeys(['b'], 2).b }}") == "12"


def test_the_date_has_the_layout_asked_for() -> None:
    assert render("{{ strftime_now('%%') }}") == "%"


def test_a_template_can_refuse() -> None:
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ x.append(1) }}",
        "{{ x.__init__.__globals__ }}",
        "{{ dict.__call__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set n = namespace(_a=1) %}",
        "{% set n = namespace() %}{% set n._a = 1 %}",
        "{{ ''.format.__self__.x }}",
        "{{ '{0.__class__.__mro__}'.format(x) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_reaches_no_python_and_changes_nothing(source: str) -> None:
    with pytest.raises((jinja2.exceptions.SecurityError, jinja2.UndefinedError, OverflowError)):
        render(source, x=[])


def test_a_private_attribute_is_nothing() -> None:
    assert render("{{ ''.__class__ }}{{ '{0.__class__}'.format(x) }}", x=[]) == ""
