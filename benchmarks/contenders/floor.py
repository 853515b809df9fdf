"""The floor: no product, but the least work that gives the same numbers, to know what is physically there.

Files are decoded by msgspec into just the fields that scoring reads; texts are scored by `floor_rouge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data import ACTUAL, EVAL_SET

from contenders import RESPONSE_MATCH, TRAJECTORY, Cells


def imports(*, logging: bool) -> None:
    """Import all that the work needs."""
    import nltk.stem.porter  # noqa: F401

    import contenders.floor_files
    import contenders.floor_rouge

    if logging:
        import contenders.floor_log
        import contenders.floor_rows  # noqa: F401


def load(folder: Path) -> Any:
    """Return the cases and the recorded invocations by eval id."""
    from contenders.floor_files import decode

    return decode((folder / EVAL_SET).read_bytes(), (folder / ACTUAL).read_bytes())


def score(data: Any) -> Cells:
    """Score without MLflow."""
    return _cells(_scores(data))


def log_rows(data: Any) -> Cells:
    """Score and log a trace per turn past MLflow."""
    from contenders import floor_rows

    return _log(data, floor_rows.write)


def log_invocation_traces(data: Any) -> Cells:
    """Score and log a trace per turn."""
    from contenders import floor_log

    return _log(data, floor_log.invocation_traces)


def log_case_traces(data: Any) -> Cells:
    """Score and log a trace per case, with a span per turn."""
    from contenders import floor_log

    return _log(data, floor_log.case_traces)


def log_table(data: Any) -> Cells:
    """Score and log a table of all turns, without traces."""
    from contenders import floor_log

    return _log(data, floor_log.table)


def _log(data: Any, write: Callable[[list[dict[str, Any]]], None]) -> Cells:
    scores = _scores(data)
    write(list(_rows(data, scores)))
    return _cells(scores)


def _pairs(data: Any) -> Iterator[tuple[str, int, Any, Any]]:
    cases, actual = data
    for case in cases:
        for turn, (expected, got) in enumerate(zip(case.conversation, actual[case.eval_id], strict=True)):
            yield case.eval_id, turn, expected, got


def _scores(data: Any) -> dict[tuple[str, int], tuple[float, float]]:
    from contenders.floor_files import calls, text
    from contenders.floor_rouge import Rouge

    rouge = Rouge()
    return {
        (eval_id, turn): (float(calls(got) == calls(expected)), rouge.score(text(got.final_response), text(expected.final_response)))
        for eval_id, turn, expected, got in _pairs(data)
    }


def _cells(scores: dict[tuple[str, int], tuple[float, float]]) -> Cells:
    for (eval_id, turn), (trajectory, response_match) in scores.items():
        yield TRAJECTORY, eval_id, turn, trajectory
        yield RESPONSE_MATCH, eval_id, turn, response_match


def _rows(data: Any, scores: dict[tuple[str, int], tuple[float, float]]) -> Iterator[dict[str, Any]]:
    from contenders.floor_files import calls, text

    for eval_id, turn, expected, got in _pairs(data):
        trajectory, response_match = scores[eval_id, turn]
        yield {
            "eval_id": eval_id,
            "turn": turn,
            "prompt": text(got.user_content),
            "actual": text(got.final_response),
            "expected": text(expected.final_response),
            "actual_tools": [{"name": call.name, "args": call.args} for call in calls(got)],
            "expected_tools": [{"name": call.name, "args": call.args} for call in calls(expected)],
            TRAJECTORY: trajectory,
            RESPONSE_MATCH: response_match,
        }
