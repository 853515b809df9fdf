"""The votes of a run as a Parquet file: a row per vote, in columns that are the same whatever the votes are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO

from mlflow_adk_eval.config.criteria import JudgedSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import InputError, Problem
from mlflow_adk_eval.results.frames import VOTE_COLUMNS
from mlflow_adk_eval.results.outcomes import Vote

_THEIR_WORDS = frozenset({"explanation", "model", "error", "raw"})
"""What others than the user wrote. The rest ties a vote to its cell and is never changed."""


def judged_criteria(config: EvalConfig) -> dict[str, tuple[JudgedSettings, ...]]:
    """Return the criteria that a model decides, each with its settings: one, or several where cases differ."""
    found: dict[str, list[JudgedSettings]] = {}
    for criteria in (config.criteria, *config.case_criteria.values()):
        for name, settings in criteria.items():
            if isinstance(settings, JudgedSettings) and settings not in found.setdefault(name, []):
                found[name].append(settings)
    return {name: tuple(settings) for name, settings in found.items()}


def dump_votes(votes: Iterable[Vote], clean: Callable[[str], str] = str) -> bytes:
    """Return votes as a Parquet file; `clean` makes others' words fit to be kept."""
    import pandas as pd  # noqa: PLC0415 - a second that only runs with judges should pay

    listed = list(votes)
    columns = {name: [getattr(vote, name) for vote in listed] for name in VOTE_COLUMNS}
    columns |= {name: [clean(text) for text in columns[name]] for name in _THEIR_WORDS}
    frame = pd.DataFrame(columns, dtype=object).astype(dict(VOTE_COLUMNS))
    content = BytesIO()
    frame.to_parquet(content, engine="pyarrow", compression="zstd", index=False)
    return content.getvalue()


def parse_votes(content: bytes, source: str) -> tuple[Vote, ...]:
    """Return the votes in a Parquet file.

    Raises:
        InputError: if it holds something else.
    """
    import pandas as pd  # noqa: PLC0415 - as above

    try:
        frame = pd.read_parquet(BytesIO(content), engine="pyarrow")
    except (OSError, ValueError) as error:
        raise InputError(source, [Problem("$", f"no Parquet file ({str(error).splitlines()[0]})", "the votes of a run")]) from None
    missing = [name for name in VOTE_COLUMNS if name not in frame.columns]
    if missing:
        raise InputError(source, [Problem("$", f"no column {missing[0]}", f"the columns {', '.join(VOTE_COLUMNS)}")])
    try:
        typed = frame[list(VOTE_COLUMNS)].astype(dict(VOTE_COLUMNS))
    except (TypeError, ValueError) as error:
        raise InputError(source, [Problem("$", f"other types ({str(error).splitlines()[0]})", "the votes of a run")]) from None
    plain = {name: column.astype(object).where(column.notna(), None) for name, column in typed.items()}
    return tuple(Vote(**dict(zip(VOTE_COLUMNS, row, strict=True))) for row in zip(*plain.values(), strict=True))
