"""Reports for the tests of the HTML page: one with everything in it, and one whose every text is somebody's attack."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from mlflow_adk_eval import EvalConfig, EvalSet, Invocation, Vote, score
from mlflow_adk_eval.report.html.report import html_of
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored, Skipped
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.testing import Request, ScriptedJudge
from tests.kit import case_result, turn_json
from tests.tracking.small import eval_set, turn

QUALITY = "rubric_based_final_response_quality_v1"
CONFIG = {
    "criteria": {
        "tool_trajectory_avg_score": 1.0,
        "response_match_score": 0.8,
        QUALITY: {
            "threshold": 1.0,
            "judge_model_options": {"judge_model": "gemini-2.5-flash", "num_samples": 3},
            "early_stop": False,
            "rubrics": [{"rubric_id": "polite", "rubric_content": {"text_property": "The answer is polite."}}],
        },
    }
}
ATTACKS = (
    "<script>document.title='pwned'</script>",
    "</script><script>window.pwned=1</script>",
    "</style></title></textarea><img src=http://evil.test/a onerror=\"document.title='pwned'\">",
    "<svg onload=window.pwned=1><animate onbegin=window.pwned=1 attributeName=x dur=1s></svg>",
    "\"'><b onmouseover=window.pwned=1 style=position:fixed;inset:0;background:url(http://evil.test/b)>x",
    "<style>@import 'http://evil.test/c';*{display:none}</style>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe><base href=http://evil.test/><meta http-equiv=refresh content=0;http://evil.test/d>",
    "<a href=javascript:window.pwned=1>x</a> [x](javascript:window.pwned=1) ![x](http://evil.test/e) <http://evil.test/f>",
    "data:text/html,<script>window.pwned=1</script>",
    "{{ 7 * 191 }} {% raw %} ${window.pwned=1} {# gone #}",
    "- `<img src=x onerror=window.pwned=1>`\n```html\n<script>window.pwned=1</script>\n```\n<!-- \n",
    "\u202egnp.\u2066exe\u2069 \u200f\x07\x1b[31m \ud800",
    "- " * 3000,
    "<b>" * 20_000,
)


def rooms() -> tuple[EvalSet, dict[str, list[dict[str, Any]]]]:
    """An eval set with a good, a bad and a lost case, and what an agent did."""
    cases = {
        "good": [turn("lamp on", "the lamp is on", ("switch", {"room": "hall"}))],
        "lamp": [
            turn("turn the lamp off", "the lamp in the hall is off now", ("look", {}), ("switch", {"room": "hall", "to": 1})),
            turn("thanks", "you are welcome"),
        ],
        "lost": [turn("are you there", "yes"), turn("and now", "still here")],
    }
    actual = {
        "good": cases["good"],
        "lamp": [
            turn("turn the lamp off", "the lamp in the hall is on now", ("switch", {"room": "all", "to": 1}), ("beep", {})),
            cases["lamp"][1],
        ],
        "lost": cases["lost"][:1],
    }
    return eval_set(cases), actual


def report() -> Report:
    """Return the report on `rooms`; on the first turn of *lamp* one of three judges is of another mind."""
    cases, actual = rooms()
    asked: list[Request] = []

    def says(request: Request) -> str:
        if "lamp in the hall" not in request.text:
            return "yes"
        asked.append(request)
        return "no" if len(asked) == 2 else "yes"

    return score(cases, actual, CONFIG, judge=ScriptedJudge(says, rationale="It says *please*."))


def page(found: Report, **given: Any) -> str:
    """Return the page of a report."""
    return html_of(found, **({"title": "rooms nightly", "facts": {"Agent version": "abc123"}, "secrets": {}} | given))


def hostile(text: str) -> Report:
    """Return a report whose every text is `text`."""
    call = {"name": text, "args": {text: [text, {text: text}]}}
    rich, other = turn_json(text, text, call), turn_json(text, f"{text} other words", {"name": text})
    said, wanted = Invocation.model_validate(rich), Invocation.model_validate(other)
    details = {"items": [{"id": text, "verdict": text, "score": 1.0, "rationale": text, "votes": {text: 2}, "dissent": [text]}]}
    vote = Vote(
        eval_id=text, run_index=0, invocation_index=0, criterion=text, rubric_id=text, vote_index=0, verdict=text, explanation=text,
        model=text, latency_s=0.1, input_tokens=1, output_tokens=1, error="",
    )  # fmt: skip
    failed_vote = Vote(
        eval_id=text, run_index=0, invocation_index=1, criterion=text, rubric_id=text, vote_index=0, verdict=None, explanation="",
        model=text, latency_s=0.1, input_tokens=1, output_tokens=1, error=text, raw=text,
    )  # fmt: skip
    scored = CriterionResult(text, 0.5, True, Scored(0.2, text), (Scored(0.2, text, details), Errored(text)), (vote, failed_vote))  # noqa: FBT003
    missing = CriterionResult(f"{text} 2", 0.5, True, Errored(text), (Errored(text), Skipped(text)))  # noqa: FBT003
    mere = CriterionResult(f"{text} 3", None, True, Scored(3.0, text), (Scored(3.0, text),))  # noqa: FBT003
    case = case_result(eval_id=text, run_index=0, actual=(said,), expected=(wanted, wanted), results=(scored, missing, mere), error=text)
    scenario = {"eval_id": text, "conversation_scenario": {"starting_prompt": text, "conversation_plan": text}}
    return Report(
        eval_set=EvalSet.model_validate({"eval_set_id": text, "eval_cases": [scenario]}),
        config=EvalConfig(criteria={}),
        cases=(case,),
        notes=(text,),
        judging=JudgeUsage(models=(text,), outage=text, votes=2),
    )


def hostile_page(text: str) -> str:
    """Return the page on which everything that can be somebody's text is `text`."""
    return page(hostile(text), title=text, facts={text: text})


class Elements(HTMLParser):
    """All tags of a page with their attributes, and its visible text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.found}

    @property
    def attributes(self) -> set[str]:
        return {name for _, attributes in self.found for name in attributes}


def visible(html: str) -> str:
    """Return the text of a page, without its style and script, on one line."""
    body = html[html.index("<body>") : html.index("<script>")]
    return " ".join(Elements(body).text.split())
