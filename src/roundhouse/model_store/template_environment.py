"""The jinja environment chat templates run in: transformers' (5.24, utils/chat_template_utils.py) in all that changes a
result.

A sandbox, because a template is a stranger's program: it reaches no Python, changes nothing it is given, and does not
take for ever (`template_budget`).
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, ClassVar, NoReturn

import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils

from roundhouse.model_store.template_budget import BudgetedEnvironment


def new_environment() -> BudgetedEnvironment:
    environment = BudgetedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; here it only lets its body through."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return caller()


class _Dict:
    """`dict(...)` without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that stores no underscored names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # jinja's own trick: a template may store a variable called `self`.
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template cannot store {name!r} on a namespace")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)  # noqa: DTZ005 - local time is what transformers gives
