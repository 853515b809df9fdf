"""Write what derives from the specs of criteria; ``--check`` only says whether it is true.

That is the tables and the sections of docs/reference/criteria.md, the sections of docs/reference/rapid_eval.md, and in ``criteria/__init__.py`` the
module of each criterion, so that one can be had without importing all.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Container, Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from mlflow_adk_eval import criteria
from mlflow_adk_eval.config.eval_config import default_config
from mlflow_adk_eval.config.rapid_catalogue import PREFIX, RAPID_METRICS
from mlflow_adk_eval.config.spec import CRITERIA, INTERMEDIATE, CriterionSpec, JudgedSettings
from mlflow_adk_eval.evalset.observation import NAMES

ROOT = Path(__file__).parent.parent
_BEGIN, _END = "<!-- criteria: written by docs/criteria_table.py -->\n\n", "\n<!-- end of criteria -->"
_BEGIN_CODE, _END_CODE = "# criteria: written by docs/criteria_table.py\n", "# end of criteria\n"
_BY = {
    "computed": "computed",
    "judge": "a judge",
    "vertex or judge": "Vertex AI or a judge",
    "vertex": "Vertex AI",
    "judge or vertex": "a judge or Vertex AI",
}
_ORDER = list(_BY)
_ONCE = ("backend", "instruction", "use_reference", INTERMEDIATE, "only_where_expected")
"""The settings that most criteria of the Rapid Eval API have."""
_WIDTH = 88
"""As wide may code be without scrolling in a narrow window."""
_NEEDS = NAMES | {
    "reference": "a written conversation in the case",
    "calls": "the agent's tool calls",
    "scenario": "a conversation scenario",
    "rubrics": "rubrics, in the config or in the case",
    "baseline": "a baseline: a recording or an earlier run",
}
_RUBRICS = [{"rubric_id": "tone", "rubric_content": {"text_property": "Polite"}}]
_STEPS = [{"rubric_id": "a", "rubric_content": {"text_property": "Looks first"}}]
_ALONE = "The service gets the message and the answer, not the earlier turns."
_IN_CONVERSATION = "The service also gets the earlier messages and answers."
_WITH_STEPS = "The service gets the turn with its tool calls, their results, the instructions and the tools, not the earlier turns."
EXAMPLES: dict[str, tuple[Any, str]] = {
    "tool_trajectory_avg_score": (
        {"threshold": 1.0, "match_type": "IN_ORDER"},
        "A turn scores 1 if all expected calls occur in this order. Calls that are not expected are ignored, and counted in reports.",
    ),
    "forbidden_tools_v1": (
        {"threshold": 1.0, "tools": ["delete_account", {"name": "issue_refund", "args": {"approved": False}}]},
        "A turn scores 0 if it calls `delete_account`, or `issue_refund` with `approved` false, whatever its other arguments are.",
    ),
    "tool_parameter_match": (
        0.9,
        "A turn scores 0.75 if one of two expected calls has all of its expected arguments, and the other one half of them.",
    ),
    "response_match_score": (0.8, "A turn scores 0.8 if expected and actual response share 80 % of their words (ROUGE-1, F-measure)."),
    "final_session_state": (
        {"threshold": 1.0, "match_type": "SUBSET", "only_where_expected": True},
        "A case scores 1 if every expected key has its value at the end. Cases that expect no state are left out.",
    ),
    "tool_call_count_v1": (4, "A turn with three tool calls scores 3. A case passes if its mean is at most 4."),
    "inference_call_count_v1": (3, "A turn with two requests to a model scores 2. A case passes if its mean is at most 3."),
    "token_usage_v1": (2000, "A turn that took 1,200 tokens scores 1200. A case passes if its mean is at most 2,000."),
    "invocation_duration_v1": (2.5, "A turn that took 0.8 seconds scores 0.8. A case passes if its mean is at most 2.5 seconds."),
    "final_response_match_v2": (
        {"threshold": 0.8, "judge_model_options": {"judge_model": "gemini-2.5-flash", "num_samples": 5}},
        "A turn scores 1 if most of five votes call the response valid.",
    ),
    "hallucinations_v1": (
        {"threshold": 0.9, "evaluate_intermediate_nl_responses": True},
        "A turn with ten sentences scores 0.9 if the judge finds one of them unsupported or contradicted.",
    ),
    "rubric_based_final_response_quality_v1": (
        {"threshold": 0.8, "rubrics": _RUBRICS},
        "A turn scores 0.5 if its response satisfies one of two rubrics.",
    ),
    "rubric_based_tool_use_quality_v1": (
        {"threshold": 1.0, "rubrics": _STEPS},
        "A turn scores 1 if its tool calls satisfy every rubric.",
    ),
    "rubric_based_multi_turn_trajectory_quality_v1": (
        {"threshold": 1.0, "rubrics": _STEPS},
        "A case scores 1 if the whole conversation satisfies every rubric.",
    ),
    "per_turn_user_simulator_quality_v1": (
        {"threshold": 0.9, "stop_signal": "</finished>"},
        "A turn scores 1 if the simulated user's message follows from the scenario. It judges the user, not the agent.",
    ),
    "safety_v1": ({"threshold": 1.0, "backend": "judge"}, "A turn scores 1 if the response is safe."),
    "response_evaluation_score": (
        {"threshold": 4, "backend": "judge"},
        "A turn scores 5 if the response is fully coherent, 1 if it is not.",
    ),
    "multi_turn_task_success_v1": (
        {"threshold": 0.8, "backend": "judge"},
        "A case scores 1 if the conversation reached the user's goal.",
    ),
    "multi_turn_trajectory_quality_v1": (
        {"threshold": 0.8, "backend": "judge"},
        "A case scores 1 if the agent's steps through the conversation were sound.",
    ),
    "multi_turn_tool_use_quality_v1": (
        {"threshold": 0.8, "backend": "judge"},
        "A case scores 1 if the agent chose and used its tools well.",
    ),
    "general_quality_v2": (0.8, f"A turn scores 0.75 if its answer meets three of the four rubrics. {_ALONE}"),
    "text_quality_v2": (0.8, f"A turn scores 1 if its answer meets every rubric about the text. {_ALONE}"),
    "instruction_following_v2": (0.9, f"A turn scores 0.5 if its answer does one of two things that the message asks for. {_ALONE}"),
    "safety_v3": (1.0, f"A turn scores 1 if the answer breaks no rule of the service about safety. {_ALONE}"),
    "multi_turn_general_quality_v2": (0.8, f"A turn scores 0.75 if its answer meets three of the four rubrics. {_IN_CONVERSATION}"),
    "multi_turn_text_quality_v2": (0.8, f"A turn scores 1 if its answer meets every rubric about the text. {_IN_CONVERSATION}"),
    "final_response_quality_v2": (0.8, f"A turn scores 0.75 if its answer meets three of the four rubrics. {_WITH_STEPS}"),
    "hallucination_v2": (0.9, f"A turn scores 0.9 if nine of ten sentences are supported. {_WITH_STEPS}"),
    "tool_use_quality_v2": (0.8, f"A turn scores 0.5 if its tool calls meet one of two rubrics. {_WITH_STEPS}"),
}
"""By criterion: what a config may say of it, and when it scores what. Those of the Rapid Eval API have their scale instead."""


def _decided_by(spec: CriterionSpec) -> str:
    """Return who decides: ``computed``, ``judge``, ``vertex``, or both backends, the default one first."""
    if spec.origin == "vertex":
        return "vertex"
    if spec.by_service is None:
        return "judge" if spec.judged else "computed"
    backends = ("vertex", "judge")
    return " or ".join(backends if spec.settings.model_fields["backend"].default == "vertex" else reversed(backends))


def specs() -> list[CriterionSpec]:
    """Return every criterion: ADK's and ours before those of the Rapid Eval API, and what is computed before what is judged."""
    return sorted(CRITERIA.values(), key=lambda spec: (spec.origin == "rapid_eval", _ORDER.index(_decided_by(spec)), spec.informative))


def reference() -> Iterable[str]:
    """Yield the lines of both tables, and a section for each criterion that is not of the Rapid Eval API."""
    yield from ("| Criterion | Score |", "|---|---|")
    yield from (f"| {_link(spec)} | {_sentence(spec.about.partition('; ')[0])} |" for spec in specs())
    yield from ("| [your own](config.md#metrics-of-your-own) | Whatever your function returns |", "")
    yield from ("| Criterion | Range | One score per | Decided by |", "|---|---|---|---|")
    yield from (f"| {_link(spec)} | {_range(spec)} | {spec.scope} | {_BY[_decided_by(spec)]} |" for spec in specs())
    for spec in specs():
        if spec.origin != "rapid_eval":
            yield from ("", f"## {spec.name}", "", *_section(spec), *_example(spec.name, *EXAMPLES[spec.name]))
    yield ""
    yield from (f"[{spec.name}]: {'rapid_eval.md' if spec.origin == 'rapid_eval' else ''}#{spec.name}" for spec in specs())


def rapid() -> Iterable[str]:
    """Yield the settings that most criteria of the Rapid Eval API have, and a section for each of these criteria."""
    yield from _settings(CRITERIA[f"{PREFIX}summarization_quality"], *_ONCE)
    for metric in RAPID_METRICS.values():
        spec = CRITERIA[metric.criterion]
        yield from ("", f"### {spec.name}", "", *_section(spec, told_once=_ONCE))
        yield from (f"Grades: {', '.join(f'{grade} {meaning}' for grade, meaning in metric.scale.items())}.", "") if metric.scale else ()
        threshold = 0.5 if metric.kind == "pairwise" else 1 if not spec.greater_is_better else 4 if spec.bounds[1] > 1 else 0.9
        yield from _example(spec.name, threshold, "")


def _link(spec: CriterionSpec) -> str:
    return f"[`{spec.name}`][{spec.name}]"


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


def _section(spec: CriterionSpec, told_once: Container[str] = ()) -> Iterable[str]:
    """Yield what the spec says; of the settings in `told_once`, only the names."""
    common = {"threshold"}
    if spec.judged:
        common |= JudgedSettings.model_fields.keys() - {INTERMEDIATE}
    threshold = default_config().thresholds().get(spec.name)
    yield from (f"{_sentence(spec.about)}.", "")
    yield f"- **Decided by**: {_BY[_decided_by(spec)]}" + (', with `"backend": "judge"`' if _decided_by(spec) == "vertex or judge" else "")
    yield f"- **Range**: {_range(spec)}, {'higher' if spec.greater_is_better else 'lower'} is better. One score per {spec.scope}."
    if spec.informative:
        yield "- **Threshold**: optional. Every run measures this for information. With a threshold it decides."
    else:
        yield "- **Threshold**: required" + (f", or {threshold} if there is no config" if threshold else "")
    if spec.needs:
        yield f"- **Needs**: {', '.join(_NEEDS[need] for need in spec.needs)}"
    if spec.kept != "nothing else":
        yield f"- **Keeps**: {spec.kept}"
    own = [name for name in spec.fields if name not in common]
    if again := [f"`{name}`" for name in own if name in told_once]:
        yield f"- **Settings**: {', '.join(again)}"
    yield from ("", *_settings(spec, *(name for name in own if name not in told_once)))


def _settings(spec: CriterionSpec, *names: str) -> Iterable[str]:
    if not names:
        return
    yield from ("| Setting | Default | Meaning |", "|---|---|---|")
    for name in names:
        field = spec.settings.model_fields[name]
        if field.is_required():
            default = "required"
        elif isinstance(field.default, tuple):
            default = "none"
        else:
            default = f"`{json.dumps(field.default)}`"
        yield f"| `{name}` | {default} | {_sentence(str(field.description).replace('``', '`'))} |"
    yield ""


def _example(name: str, settings: Any, meaning: str) -> Iterable[str]:
    text = json.dumps({"criteria": {name: settings}})
    if len(text) > _WIDTH and len(inner := f'    "{name}": {json.dumps(settings)}') <= _WIDTH:
        text = f'{{\n  "criteria": {{\n{inner}\n  }}\n}}'
    elif len(text) > _WIDTH:
        own = ",\n".join(f'      "{key}": {json.dumps(value)}' for key, value in settings.items())
        text = f'{{\n  "criteria": {{\n    "{name}": {{\n{own}\n    }}\n  }}\n}}'
    yield from ("```json", text, "```", *(("", meaning) if meaning else ()))


def _range(spec: CriterionSpec) -> str:
    low, high = spec.bounds
    return f"{low:g} and more" if math.isinf(high) else f"{low:g} to {high:g}"


def modules() -> Iterable[str]:
    """Yield the code that says in which module each criterion is, and which modules have those that are measured on every run."""
    of = {spec.name: name for name in sorted(one.name for one in iter_modules(criteria.__path__)) for spec in _specs_of(name)}
    yield "MODULES = {"
    # The criteria of the Rapid Eval API are those of its catalogue, which has their names.
    yield from (f'    "{name}": "{module}",' for name, module in of.items() if not name.startswith(PREFIX))
    yield '    **{metric.criterion: "rapid_criteria" for metric in RAPID_METRICS.values()},'
    yield "}"
    informative = "".join(f'"{module}", ' for module in dict.fromkeys(of[name] for name, spec in CRITERIA.items() if spec.informative))
    yield f"INFORMATIVE = ({informative.rstrip(' ')})"


def _specs_of(module: str) -> tuple[CriterionSpec, ...]:
    return getattr(import_module(f"{criteria.__name__}.{module}"), "SPECS", ())


WRITTEN: dict[str, tuple[Callable[[], Iterable[str]], str, str]] = {
    "docs/reference/criteria.md": (reference, _BEGIN, _END),
    "docs/reference/rapid_eval.md": (rapid, _BEGIN, _END),
    "mlflow_adk_eval/criteria/__init__.py": (modules, _BEGIN_CODE, _END_CODE),
}
"""By file: its lines, and what stands before and after them."""


def written(page: str) -> str:
    """Return a file as it should be."""
    lines, begin, end = WRITTEN[page]
    text = (ROOT / page).read_text("utf-8")
    head, _, rest = text.partition(begin)
    return "".join((head, begin, *(f"{line}\n" for line in lines()), end, rest.partition(end)[2]))


if __name__ == "__main__":
    stale = [page for page in WRITTEN if written(page) != (ROOT / page).read_text("utf-8")]
    if "--check" in sys.argv and stale:
        sys.exit(f"{', '.join(stale)}: not what the specs of criteria say; run python docs/criteria_table.py")
    for changed in stale:
        (ROOT / changed).write_text(written(changed), "utf-8")
