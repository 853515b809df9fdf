"""What judges read, in tokens, and how much of it a server has read before: ``python benchmarks/tokens.py --before a8fd11f``.

Asks each judged criterion about one conversation of four turns, without a model, and counts by OpenAI's cl100k, whose file LiteLLM (the extra
``litellm``) brings along. The second vote on a question can reuse what the first one begins with, and a question what the question on the
turn before begins with, or for criteria of whole cases the question on the case before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

CRITERIA = (
    "final_response_match_v2",
    "rubric_based_final_response_quality_v1",
    "rubric_based_tool_use_quality_v1",
    "rubric_based_multi_turn_trajectory_quality_v1",
    "hallucinations_v1",
    "per_turn_user_simulator_quality_v1",
    "safety_v1",
    "response_evaluation_score",
    "multi_turn_task_success_v1",
    "multi_turn_trajectory_quality_v1",
    "multi_turn_tool_use_quality_v1",
)
_ROOT = Path(__file__).parents[1]
_TALK = (
    ("Which lamps are on in the hall?", "list_lamps", {"room": "hall"}, "In the hall the ceiling lamp is on. The desk lamp is off."),
    ("Turn the desk lamp on, please.", "set_lamp", {"lamp": "desk", "on": True}, "I turned the desk lamp on. Both lamps are on now."),
    ("And what did the lamps cost me last week?", "energy", {"days": 7}, "Last week the lamps took 3.2 kWh, about 1.12 euros."),
    ("Thank you, turn everything off.", "set_all", {"on": False}, "All lamps are off. Good night!"),
)


def turns(talk: int) -> Iterator[dict[str, Any]]:
    """Yield the turns of a conversation, with what the agent was told and could call."""
    agent = {
        "name": "house",
        "instructions": "You control the lamps of a house. Look up what you do not know, act only on what the user asked for, and say what you did.",
        "tool_declarations": [
            {"function_declarations": [{"name": name, "description": f"The tool {name} of the house."} for _, name, _, _ in _TALK]}
        ],
    }
    for number, (user, tool, args, answer) in enumerate(_TALK):
        said = f"{user} I am in house {talk}." if not number else user
        yield {
            "user_content": {"parts": [{"text": said}]},
            "final_response": {"parts": [{"text": answer}]},
            "intermediate_data": {
                "tool_uses": [{"name": tool, "args": args}],
                "tool_responses": [{"name": tool, "response": {"result": answer}}],
            },
            "app_details": {"agent_details": {"house": agent}},
        }


def requests(name: str, prompt: str | None) -> list[list[tuple[str, str]]]:
    """Return the instructions and the text of each request that a criterion makes about two conversations: two votes on each question."""
    import anyio

    from mlflow_adk_eval.config.spec import CRITERIA as SPECS
    from mlflow_adk_eval.criteria.criterion import CaseRun
    from mlflow_adk_eval.errors import UsageError
    from mlflow_adk_eval.evalset.models import EvalCase, Invocation
    from mlflow_adk_eval.judge.question import ItemVerdict
    from mlflow_adk_eval.judge.voting import JudgeResponse, VoteCollector

    spec, found = SPECS[name], list[list[tuple[str, str]]]()

    async def ask(question: Any, _vote: int) -> JudgeResponse:
        varied = question
        if prompt:
            with suppress(UsageError):  # not every prompt has every variant
                varied = question.variant(prompt)
        votes = [varied.request({}) for _ in range(2)]
        found.append([(vote.instructions, vote.text) for vote in votes])
        return JudgeResponse(verdicts=(ItemVerdict(label=next(iter(question.label_values))),) * len(question.items), model="none")

    for talk in range(2):
        had = [Invocation.model_validate(turn) for turn in turns(talk)]
        case: dict[str, Any] = {"eval_id": f"house {talk}", "conversation": list(turns(talk))}
        if "scenario" in spec.needs:
            plan = {
                "starting_prompt": _TALK[0][0],
                "conversation_plan": "Find out which lamps are on, have the desk lamp on, then all off.",
            }
            case = {"eval_id": f"house {talk}", "conversation_scenario": plan}
        rubrics = [{"rubric_id": "r1", "rubric_content": {"text_property": "The agent says what it did."}}]
        rubrics += [{"rubric_id": "r2", "rubric_content": {"text_property": "The agent does nothing that nobody asked for."}}]
        settings = {"threshold": 0.5} | ({"rubrics": rubrics} if "rubrics" in spec.settings.model_fields else {})
        collector = VoteCollector(ask=ask, num_samples=1)
        anyio.run(
            spec.make(spec.settings.model_validate(settings), collector), CaseRun(case=EvalCase.model_validate(case), actual=tuple(had))
        )
    questions = len(found) // 2
    return found[:questions] if questions > 1 else found


def encoding() -> Any:
    """Return cl100k, from the file that LiteLLM brings along: nothing is fetched."""
    litellm = find_spec("litellm")
    if litellm is None or litellm.origin is None or find_spec("tiktoken") is None:
        raise SystemExit("skipped: LiteLLM is not installed, which has the tokenizer; install the extra litellm")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers")
    import tiktoken

    return tiktoken.get_encoding("cl100k_base")


def measured(prompt: str | None = None) -> dict[str, list[float]]:
    """Return by criterion: the mean tokens of a request, and the shares of them that stand in the vote and the question before."""
    tokenizer = encoding()

    def tokens(request: tuple[str, str]) -> list[int]:
        return [token for part in request for token in tokenizer.encode(part, disallowed_special=())]

    def share(pairs: Sequence[tuple[list[int], list[int]]]) -> float:
        return sum(map(common, pairs)) / sum(len(later) for _, later in pairs)

    found: dict[str, list[float]] = {}
    for name in CRITERIA:
        asked = [[tokens(vote) for vote in votes] for votes in requests(name, prompt)]
        first = [votes[0] for votes in asked]
        found[name] = [fmean(map(len, first)), share([(one, two) for one, two in asked]), share(list(pairwise(first)))]
    return found


def common(pair: tuple[Sequence[int], Sequence[int]]) -> int:
    """Return how many tokens two requests begin with.

    >>> common(([1, 2, 3], [1, 2, 4]))
    2
    """
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False)))


def main() -> None:
    """Print a table, of this tree or of an earlier commit beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="an earlier commit to measure as well")
    parser.add_argument("--prompt", metavar="VARIANT", help="a variant of today's prompts to measure as well, such as listed")
    parser.add_argument("--json", action="store_true", help="print the figures of the package that can be imported")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(measured(options.prompt)))
        return
    from house import at_commit

    with tempfile.TemporaryDirectory() as folder:
        roots = {options.before: at_commit(options.before, Path(folder))} if options.before else {}
        found = {title: _of(root) for title, root in ({**roots, "now": _ROOT}).items()}
        if options.prompt:
            found[options.prompt] = _of(_ROOT, "--prompt", options.prompt)
    print(
        f"| {' → '.join(found)} | tokens a request | of them, those that the vote before begins with | that the question before begins with |"
    )
    print("|---|---|---|---|")
    for name in CRITERIA:
        rows = [columns[name] for columns in found.values()]
        cells = [" → ".join(f"{row[0]:,.0f}" for row in rows), *(" → ".join(f"{row[at]:.0%}" for row in rows) for at in (1, 2))]
        print(f"| `{name}` | {' | '.join(cells)} |")
    ran = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=True)
    command = " ".join(["python benchmarks/tokens.py", *sys.argv[1:]])
    print(f"\n<sub>Measured at {ran.stdout.strip()} by `{command}`; cl100k_base, tiktoken {version('tiktoken')}.</sub>")


def _of(root: Path, *given: str) -> dict[str, list[float]]:
    ran = subprocess.run(
        [sys.executable, __file__, "--json", *given], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(root)}
    )
    return json.loads(ran.stdout.splitlines()[-1])  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
