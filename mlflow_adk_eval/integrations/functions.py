"""Each criterion as a function of its own name, whose keywords are the settings of the criterion and those of its judge.

`metrics.<criterion>` and `scorers.<criterion>` are such functions. Nothing about them is written down by hand: the keywords, their defaults and
the documentation come from the criterion's `CriterionSpec` and the fields of its settings, when the function is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from inspect import Parameter, Signature, signature
from typing import Any, Generic, TypeVar, cast

from pydantic.fields import FieldInfo

from mlflow_adk_eval.config.criteria import Settings
from mlflow_adk_eval.config.eval_config import EvalConfig, default_config
from mlflow_adk_eval.config.spec import CRITERIA, CriterionSpec
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean
from mlflow_adk_eval.evalset.models import Model
from mlflow_adk_eval.integrations.scoring import criterion_config
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.runner.keywords import docs_of

T = TypeVar("T")


_JUDGE_KEYWORDS = signature(judge_setup).parameters
"""Of every function, after the settings of its criterion."""


class CriterionFunctions(Generic[T]):
    """The functions of a module, one for each criterion that there is when it is asked.

    A module serves them by a ``__getattr__`` that calls `named`, and lists them by `CRITERIA`. A function is made once, so that it can be
    pickled by its name; one whose criterion was registered anew is made anew.
    """

    def __init__(self, make: Callable[[EvalConfig, str, JudgeArgs], T], module: str) -> None:
        """Say what the functions return.

        Args:
            make: from a config of one criterion, the criterion's name and what is said of judges to what the function returns.
            module: the ``__name__`` of the module that the functions are to be in.
        """
        self._module = module
        self._made = cache(lambda spec: _function(spec, make, module))

    def named(self, name: str) -> Callable[..., T]:
        """Return the function of a criterion.

        Raises:
            AttributeError: if there is no such criterion.
        """
        if name.startswith("__") or name not in CRITERIA:
            hint = "" if name.startswith("__") else did_you_mean(name, list(CRITERIA))
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}. {hint}".strip())
        return self._made(CRITERIA[name])


def _function(spec: CriterionSpec, make: Callable[[EvalConfig, str, JudgeArgs], T], module: str) -> Callable[..., T]:
    name, parameters = spec.name, _parameters(spec)

    def function(**given: Any) -> T:
        _refuse_unknown(name, given, parameters)
        settings = {key: _plain(value) for key, value in given.items() if key not in _JUDGE_KEYWORDS}
        config = criterion_config(name, _defaults(name) | settings)
        return make(config, name, cast("JudgeArgs", {key: value for key, value in given.items() if key in _JUDGE_KEYWORDS}))

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__doc__ = _doc(spec)
    function.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess] - any function may have one
    return function


def _defaults(name: str) -> dict[str, Any]:
    """Return the threshold of a criterion that ADK has one for."""
    settings = default_config().criteria.get(name)
    return {"threshold": settings.threshold} if settings else {}


def _parameters(spec: CriterionSpec) -> dict[str, Parameter]:
    """Return the keywords of a criterion's function: its settings, then those of the judge."""
    defaults = {key: _default(found) for key, found in spec.settings.model_fields.items()} | _defaults(spec.name)
    known = {
        key: Parameter(key, Parameter.KEYWORD_ONLY, default=defaults[key], annotation=found.annotation)
        for key, found in spec.settings.model_fields.items()
    }
    return known | dict(_JUDGE_KEYWORDS)


def _default(found: FieldInfo) -> Any:
    return Parameter.empty if found.is_required() else found.get_default(call_default_factory=True)


def _doc(spec: CriterionSpec) -> str:
    arguments = {key: found.description for key, found in spec.settings.model_fields.items()}
    arguments |= docs_of(JudgeArgs)
    listed = "\n".join(f"    {key}: {about or 'see the settings of the criterion.'}" for key, about in arguments.items())
    errors = "    ConfigError: naming every keyword that there is not, is missing or is wrong.\n    JudgeError: if a judge cannot be had."
    return f"Return ``{spec.name}``: {spec.about}.\n\nArgs:\n{listed}\n\nRaises:\n{errors}\n"


def _refuse_unknown(name: str, given: Mapping[str, Any], known: Mapping[str, Parameter]) -> None:
    wanted = f"one of {', '.join(known)}"
    problems = [Problem(key, "an unknown keyword", wanted, did_you_mean(key, known)) for key in given if key not in known]
    if problems:
        raise ConfigError(f"{name}()", problems)


def _plain(value: Any) -> Any:
    """Return models among the settings as a config would spell them."""
    if isinstance(value, Model | Settings):
        return value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
