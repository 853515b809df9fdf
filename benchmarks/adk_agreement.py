"""Whether this package and google-adk read the same in eval sets and configs, and score it the same: `python benchmarks/adk_agreement.py [FOLDER…]`.

Without a folder, ADK's own samples are read, if they are at ``../shared/data/adk``, and sets made up for this, in each generation
of the format and with the quirks on which the two are known to differ.

Each file is loaded by both. Each case that both have is scored by both against a recording made from its own expectations, changed in
ways that the file's content decides, so that every call of this command does the same: the trajectory in all its match types, and
ROUGE. ADK scores what ADK loaded. Every difference is looked up in `DOCUMENTED`, whose sentences stand in
``docs/development/parity.md``. A difference that is not there is printed, and the command ends with 1.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from data import Generator, Json
from pydantic import ValidationError

from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.criterion import CaseRun, Planned, result_of
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset.files import dump, load_eval_set, stem_of
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation
from mlflow_adk_eval.results.outcomes import Scored

SAMPLES = Path(__file__).parents[1].parent / "shared" / "data" / "adk"
TRAJECTORY, RESPONSE = "tool_trajectory_avg_score", "response_match_score"
MATCHES = tuple(product(("EXACT", "IN_ORDER", "ANY_ORDER"), (False, True)))
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Turn:
    """A turn of which the two gave different scores, or one gave none."""

    criterion: str
    expected: Invocation
    actual: Invocation
    ours: float | None
    theirs: float | None


@dataclass(frozen=True)
class Documented:
    """A difference that is meant."""

    sentence: str
    """How ADK behaves, as docs/development/parity.md says."""
    of_turn: Callable[[Turn], bool] | None = None
    """Whether a turn differs for this reason."""
    only_ours: str = ""
    """What ADK says of a file that it refuses for this reason."""
    only_theirs: str = ""
    """What this package says of a file that it refuses for this reason."""


def _texts(content: Content | None, *, thoughts: bool) -> list[str]:
    parts = (content.parts if content else None) or ()
    return [part.text for part in parts if part.text and (thoughts or not part.thought)]


def _wordless(content: Content | None) -> bool:
    return not any(text.strip() for text in _texts(content, thoughts=False))


def _without_words(turn: Turn) -> bool:
    """Whether there is nothing to compare on a side, or only what the scorer knows no words for."""
    sides = (turn.expected.final_response, turn.actual.final_response)
    return turn.ours is None and any(_wordless(side) or not re.search(r"\w", " ".join(_texts(side, thoughts=False))) for side in sides)


def _has_thoughts(turn: Turn) -> bool:
    sides = (turn.expected.final_response, turn.actual.final_response)
    return any(_texts(side, thoughts=True) != _texts(side, thoughts=False) for side in sides)


def _silent(turn: Turn) -> bool:
    return turn.ours is None and turn.actual.final_response is None and not turn.actual.events and not turn.actual.tool_calls


def _holds(value: Any, kinds: type) -> bool:
    if isinstance(value, dict):
        return any(_holds(item, kinds) for item in value.values())
    return any(_holds(item, kinds) for item in value) if isinstance(value, list) else isinstance(value, kinds)


def _arguments(turn: Turn) -> list[Any]:
    return [call.args for side in (turn.expected, turn.actual) for call in side.tool_calls]


DOCUMENTED = (
    Documented(
        "ADK: Without a response in the reference, the score is 0, and the case fails.",
        of_turn=lambda turn: turn.criterion == RESPONSE and turn.ours is None and _wordless(turn.expected.final_response),
    ),
    Documented(
        "ADK: A response that is media, without text, scores 0.",
        of_turn=lambda turn: turn.criterion == RESPONSE and _without_words(turn),
    ),
    Documented(
        "ADK: Thoughts of the agent are a part of its answer.",
        of_turn=lambda turn: turn.criterion == RESPONSE and _has_thoughts(turn),
    ),
    Documented(
        "ADK: A call without arguments (`args` absent) differs from one with `{}`.",
        of_turn=lambda turn: turn.criterion == TRAJECTORY and turn.ours == 1 and any(args in (None, {}) for args in _arguments(turn)),
    ),
    Documented(
        "ADK: `true` equals `1`, `false` equals `0`, since Python says so.",
        of_turn=lambda turn: turn.criterion == TRAJECTORY and turn.theirs == 1 and any(_holds(args, bool) for args in _arguments(turn)),
    ),
    Documented("ADK: A byte order mark cannot be read.", only_ours="Unexpected UTF-8 BOM"),
    Documented("ADK: `evalSetId` and `evalCases` are refused", only_ours=r"^missing \(eval_set_id\), missing \(eval_cases\)$"),
    Documented(
        "ADK: An unknown field of a turn or a scenario makes a file unreadable.",
        only_ours=r"^extra_forbidden \([^()]*\)(, extra_forbidden \([^()]*\))*$",
    ),
    Documented(
        "ADK: An expectation at a case, a set or an event, where nothing reads it, is kept or dropped silently.",
        only_theirs="a key that nothing reads here",
    ),
    Documented("ADK: Of a key that stands twice in one object, the last value counts.", only_theirs="a key that stands twice"),
    Documented("ADK: Two cases of one id are read.", only_theirs="the same as .*; wanted a unique id"),
    Documented("ADK: Unknown keys, unknown criteria and misspelt settings are silent.", only_theirs="an unknown (key|criterion)"),
    Documented(
        "ADK: Thresholds below, above and beyond all numbers are accepted.", only_theirs="wanted a number (from|of at least|between)"
    ),
    Documented('ADK: `{"criteria": {}}` is valid.', only_theirs="at least one criterion with a threshold"),
)
"""Each deliberate difference that files and computed scores can show. One that is found in none is no error."""
_NOTHING = "A turn in which the agent produced nothing at all has no score here."
"""The reason where it did not even answer with an empty text."""


@dataclass
class Tally:
    """What was counted."""

    files: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)
    documented: Counter[str] = field(default_factory=Counter)
    undocumented: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        yield "files: " + ", ".join(f"{count} {what}" for what, count in sorted(self.files.items()))
        yield "turn scores: " + (", ".join(f"{count:,} {what}" for what, count in sorted(self.turns.items())) or "none")
        yield f"documented differences: {self.documented.total():,}"
        yield from (f"  {count:,} x {sentence}" for sentence, count in self.documented.most_common())
        yield f"UNDOCUMENTED differences: {len(self.undocumented):,}"
        yield from (f"  {line}" for line in self.undocumented[:50])


def _by_adk(file: Path) -> Any:
    """Return what ADK's own loaders make of an eval set, a list of turns included, which `AgentEvaluator` reads."""
    from google.adk.evaluation.eval_set import EvalSet
    from google.adk.evaluation.local_eval_sets_manager import convert_eval_set_to_pydantic_schema, load_eval_set_from_file

    text = file.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        value = json.loads(text)
        if value and isinstance(value[0], dict) and "data" not in value[0]:
            return convert_eval_set_to_pydantic_schema("s", [{"name": stem_of(file), "data": value, "initial_session": {}}])
    try:
        return load_eval_set_from_file(str(file), stem_of(file))
    except (TypeError, KeyError, AttributeError):  # what ADK says of any mistake: that the file is none of the old format
        EvalSet.model_validate_json(text)
        raise


def _attempt(load: Callable[[Path], Any], file: Path) -> tuple[Any, str]:
    try:
        return load(file), ""
    except InputError as error:
        return None, str(error)
    except ValidationError as error:
        return None, ", ".join(f"{detail['type']} ({'.'.join(map(str, detail['loc']))})" for detail in error.errors())
    except Exception as error:  # noqa: BLE001 - ADK's loaders raise whatever comes
        return None, f"{type(error).__name__}: {error}"


def changed(expected: Invocation, seed: str) -> Invocation:
    """Return what an agent might have done in a turn: what is expected, with up to two changes that `seed` decides."""
    rng = random.Random(hashlib.sha256(seed.encode()).digest())
    value: Json = {"user_content": dump(expected.user_content)}
    calls = [dump(call) for call in expected.tool_calls]
    if rng.random() < 1 / 16:  # and sometimes it does nothing at all
        return Invocation.model_validate(value)
    for change in rng.sample(("drop", "add", "swap", "argument", "name", "spelling", "none", "none"), 2):
        if change == "add":
            calls.insert(rng.randint(0, len(calls)), {"name": "look_around", "args": {"far": 1}})
        elif calls and change == "drop":
            calls.pop(rng.randrange(len(calls)))
        elif calls and change == "swap":
            rng.shuffle(calls)
        elif calls and change == "argument":
            call = calls[rng.randrange(len(calls))]
            call["args"] = {**(call.get("args") or {}), "extra": rng.choice((True, 1, None, "x"))}
        elif calls and change == "name":
            calls[rng.randrange(len(calls))]["name"] = "another_tool"
        elif change == "spelling":  # which differs for ADK, or does not
            calls = [{**call, "args": {name: 1 if item is True else item for name, item in call.get("args", {}).items()}} for call in calls]
    value["intermediate_data"] = {"tool_uses": calls}
    words = expected.final_text.split()
    kept = [word for word in words if rng.random() < rng.choice((1, 1, 0.8, 0.4))]
    text = " ".join(kept) or rng.choice(("I do not know.", "…", "Done"))
    parts: list[Json] = [{"text": text}]
    if rng.random() < 1 / 8:
        parts.insert(0, {"text": "The user wants something.", "thought": True})
    value["final_response"] = {"role": "model", "parts": parts}
    return Invocation.model_validate(value)


def _scores_by_us(name: str, case: EvalCase, actual: Sequence[Invocation], settings: Json) -> list[float | None]:
    spec = CRITERIA[name]
    criterion = spec.make(spec.settings.model_validate({"threshold": 0.5, **settings}))
    run = CaseRun(case=case, actual=tuple(actual))
    judged: Any = criterion(run)
    result = result_of(Planned(name=name, criterion=criterion, threshold=None), run, judged)
    return [cell.score if isinstance(cell, Scored) else None for cell in result.per_invocation]


def _scores_by_adk(name: str, expected: Any, actual: Sequence[Invocation], settings: Json) -> list[float | None]:
    from google.adk.evaluation import eval_case, eval_metrics
    from google.adk.evaluation.final_response_match_v1 import RougeEvaluator
    from google.adk.evaluation.trajectory_evaluator import TrajectoryEvaluator

    kind, evaluator = {
        TRAJECTORY: (eval_metrics.ToolTrajectoryCriterion, TrajectoryEvaluator),
        RESPONSE: (eval_metrics.BaseCriterion, RougeEvaluator),
    }[name]
    metric = eval_metrics.EvalMetric(metric_name=name, criterion=kind.model_validate({"threshold": 0.5, **settings}))
    turns = [eval_case.Invocation.model_validate(dump(turn)) for turn in actual]
    return [found.score for found in evaluator(eval_metric=metric).evaluate_invocations(turns, expected).per_invocation_results]


def _same(ours: float | None, theirs: float | None) -> bool:
    return ours == theirs or (ours is not None and theirs is not None and abs(ours - theirs) < _TOLERANCE)


def _compare_case(case: EvalCase, theirs: Any, place: str, tally: Tally) -> None:
    """Score one case by both, and count."""
    turns = case.conversation or ()
    actual = [changed(turn, f"{case.eval_id}#{index}") for index, turn in enumerate(turns)]
    wanted: list[tuple[str, Json]] = [(RESPONSE, {})]
    wanted += [(TRAJECTORY, {"match_type": match, "ignore_args": ignored}) for match, ignored in MATCHES]
    for name, settings in wanted if turns else ():
        ours = _scores_by_us(name, case, actual, settings)
        others = _scores_by_adk(name, theirs.conversation, actual, settings)
        for index, pair in enumerate(zip(turns, actual, ours, others, strict=True)):
            turn = Turn(name, *pair)
            if _same(turn.ours, turn.theirs):
                tally.turns["equal"] += 1
                continue
            reason = next((known.sentence for known in DOCUMENTED if known.of_turn and known.of_turn(turn)), "")
            if not reason and _silent(turn):
                reason = _NOTHING
            tally.turns["different, documented" if reason else "DIFFERENT"] += 1
            if reason:
                tally.documented[reason] += 1
            else:
                tally.undocumented.append(f"{place}, turn {index}, {name} {settings}: {turn.ours} here, {turn.theirs} in ADK")


def _compare_loading(file: Path, kind: str, ours: str, theirs: str, tally: Tally) -> None:
    """Count a file that only one of them, or neither, can load; `ours` and `theirs` are their errors."""
    if ours and theirs:
        tally.files[f"{kind} refused by both"] += 1
        return
    who, said = ("ADK", ours) if ours else ("us", theirs)
    tally.files[f"{kind} loaded by {who} only"] += 1
    for known in DOCUMENTED:
        pattern = known.only_theirs if ours else known.only_ours
        if pattern and re.search(pattern, said):
            tally.documented[known.sentence] += 1
            return
    tally.undocumented.append(f"{file}: loaded by {who} only: {' '.join(said.split())[:300]}")


def _compare_set(file: Path, tally: Tally) -> None:
    ours, our_error = _attempt(load_eval_set, file)
    theirs, their_error = _attempt(_by_adk, file)
    if our_error or their_error:
        _compare_loading(file, "eval sets", our_error, their_error, tally)
        return
    tally.files["eval sets loaded by both"] += 1
    if len(ours.eval_cases) != len(theirs.eval_cases):
        tally.undocumented.append(f"{file}: {len(ours.eval_cases)} cases here, {len(theirs.eval_cases)} in ADK")
        return
    for case, other in zip(ours.eval_cases, theirs.eval_cases, strict=True):
        _compare_case(case, other, f"{file}, case {case.eval_id!r}", tally)


def _compare_config(file: Path, tally: Tally) -> None:
    from google.adk.evaluation.eval_config import get_evaluation_criteria_or_default

    ours, our_error = _attempt(load_config, file)
    theirs, their_error = _attempt(lambda path: get_evaluation_criteria_or_default(str(path)), file)
    if our_error or their_error:
        _compare_loading(file, "configs", our_error, their_error, tally)
        return
    tally.files["configs loaded by both"] += 1
    thresholds = {name: getattr(value, "threshold", value) for name, value in theirs.criteria.items()}
    found = {name: settings.threshold for name, settings in ours.criteria.items()}
    if found != thresholds:
        tally.undocumented.append(f"{file}: the criteria {found} here, {thresholds} in ADK")


def compare(folders: Sequence[Path]) -> Tally:
    """Compare all eval sets and configs below some folders."""
    warnings.simplefilter("ignore")  # ADK's evaluation package is experimental, and says so
    logging.getLogger("google_adk").setLevel(logging.CRITICAL)  # it logs a traceback before it tries the old format
    tally = Tally()
    for file in sorted(file for folder in folders for file in folder.rglob("*.json")):
        if file.name.endswith((".test.json", ".evalset.json")):
            _compare_set(file, tally)
        elif file.name.endswith("config.json"):
            _compare_config(file, tally)
    return tally


def write_generated(folder: Path, cases: int = 8) -> None:
    """Write eval sets and configs that show every generation of the format, and the known differences in reading."""
    generator = Generator()
    made = [generator.case(f"case_{number}", 3)[0] for number in range(cases)]
    whole = {"eval_set_id": "made", "eval_cases": made}
    turns = [turn for case in made for turn in case["conversation"]]
    legacy = [_legacy(turn) for turn in turns]
    bare = [{"query": turn["query"]} for turn in legacy]
    odd = json.loads(json.dumps(made[0]))
    odd["conversation"][0]["note"] = "by anna"
    unread = json.loads(json.dumps(made[0]))
    unread["expected_answer"] = "x"
    strange = [
        _turn("Deny it.", "No.", [{"name": "set", "args": {"on": True}}, {"name": "wait"}]),
        _turn("Say nothing.", "", []),
        {
            "user_content": {"parts": [{"text": "Draw."}]},
            "final_response": {"parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}]},
        },
    ]
    sets: Json = {
        "today.evalset.json": whole,
        "camel.evalset.json": _camel(whole),
        "cases.evalset.json": [
            {"name": "old", "data": legacy[:4]},
            {"name": "older", "data": legacy[4:], "initial_session": {"state": {"a": 1}}},
        ],
        "turns.test.json": legacy,
        "bare.test.json": bare,
        "strange.evalset.json": {"eval_set_id": "s", "eval_cases": [{"eval_id": str(seed), "conversation": strange} for seed in range(40)]},
        "odd.evalset.json": {"eval_set_id": "o", "eval_cases": [odd]},
        "unread.evalset.json": {"eval_set_id": "u", "eval_cases": [unread]},
        "twins.evalset.json": {"eval_set_id": "t", "eval_cases": [made[0], made[0]]},
        "broken.evalset.json": {"eval_set_id": "b"},
        "plain_config.json": {"criteria": {TRAJECTORY: 1.0, RESPONSE: {"threshold": 0.5}}},
        "commented_config.json": {"_comment": "agreed", "criteria": {RESPONSE: 0.5}},
        "misspelt_config.json": {"critera": {RESPONSE: 0.5}},
        "empty_config.json": {"criteria": {}},
        "high_config.json": {"criteria": {RESPONSE: 5}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in sets.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    text = json.dumps(whole)
    (folder / "mark.evalset.json").write_text("\ufeff" + text, encoding="utf-8")
    (folder / "twice.evalset.json").write_text(f'{{"eval_set_id": "a", {text[1:]}', encoding="utf-8")


def _turn(query: str, answer: str, calls: list[Json]) -> Json:
    said = {"role": "model", "parts": [{"text": answer}]}
    return {"user_content": {"parts": [{"text": query}]}, "final_response": said, "intermediate_data": {"tool_uses": calls}}


def _legacy(turn: Json) -> Json:
    uses = (turn.get("intermediate_data") or {}).get("tool_uses", [])
    return {
        "query": turn["user_content"]["parts"][0]["text"],
        "reference": turn["final_response"]["parts"][0]["text"],
        "expected_tool_use": [{"tool_name": use["name"], "tool_input": use.get("args", {})} for use in uses],
    }


def _camel(value: Json) -> Json:
    return {"evalSetId": value["eval_set_id"], "evalCases": value["eval_cases"]}


def main(arguments: Sequence[str]) -> int:
    """Compare, print what was counted, and return 1 if anything differs that is not documented."""
    folders = [Path(argument) for argument in arguments]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        print(f"no such folder: {', '.join(missing)}", file=sys.stderr)
        return 64
    with tempfile.TemporaryDirectory() as made:
        if not folders:
            write_generated(Path(made, "generated"))
            folders = [Path(made), *([SAMPLES] if SAMPLES.is_dir() else [])]
        tally = compare(folders)
    print("\n".join(tally.lines()))
    return 1 if tally.undocumented else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
