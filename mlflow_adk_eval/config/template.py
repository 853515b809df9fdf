"""Templates that users write, in Jinja, filled in within its sandbox. Jinja is loaded when there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the code of a template may raise besides Jinja's own errors."""


def placeholders(template: str) -> frozenset[str]:
    """Return the names that a template needs values for.

    Raises:
        ValueError: if it is no template.

    >>> sorted(placeholders("{% for b in persona.behaviors %}{{ b.name }}{% endfor %} {{ stop_signal }}"))
    ['persona', 'stop_signal']
    """
    from jinja2 import TemplateError, meta  # noqa: PLC0415

    environment = _environment()
    try:
        environment.from_string(template)  # which finds unknown filters, too
        return frozenset(meta.find_undeclared_variables(environment.parse(template)))
    except TemplateError as error:
        raise ValueError(_said(error)) from None


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with these values in it. Values are text, never templates themselves.

    Raises:
        ValueError: if it cannot be filled in.

    >>> filled("{{ plan }}!", {"plan": "{{ 6 * 7 }}"})
    '{{ 6 * 7 }}!'
    """
    from jinja2 import TemplateError  # noqa: PLC0415

    try:
        return _environment().from_string(template).render(values)
    except (TemplateError, *_BROKEN) as error:
        raise ValueError(_said(error)) from None


def _environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined  # noqa: PLC0415
    from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415

    environment = SandboxedEnvironment(undefined=StrictUndefined, finalize=_blank)
    environment.filters["render_string_filter"] = str  # ADK's templates have it; what it fills in is filled in already
    return environment


def _blank(value: Any) -> Any:
    """Return what a template shows of a value: of none, nothing."""
    return "" if value is None else value


def _said(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    return f"{error} (line {line})" if line else str(error)
