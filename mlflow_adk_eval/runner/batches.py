"""Scoring recorded cases batch by batch, wherever there is a Python: in other processes, on Spark, Ray or Dask.

`score_batch` turns the rows of some cases into the files of one part of a run. It needs no MLflow, and what it takes and returns can be
pickled. Whoever puts the run together takes parts in the order of the eval set, and reads from their files whatever is known of them.
`engine_of` does all of this for ``workers=``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pydantic_core import from_json

from mlflow_adk_eval.agents.recordings import Recording, StreamedRecording, recorded_run
from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria
from mlflow_adk_eval.errors import Problem, RunError, UsageError
from mlflow_adk_eval.evalset.conversation import RecordedRun, conversation_of, dumps_recorded
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.evalset.row_cases import CaseReader, CaseTexts
from mlflow_adk_eval.evalset.row_files import Row
from mlflow_adk_eval.evalset.rows import CaseFiles, StreamedCases
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.ledger import is_shared, opened
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.runner.evaluation import CaseExecutor, Engine, Evaluation, Options, wait
from mlflow_adk_eval.runs.collect import Collector, InParts
from mlflow_adk_eval.runs.parts import CASES, PART_BYTES, PART_TURNS, Cleaner, PartWriter, WrittenPart

_MAX_ATTEMPTS = 2
_IN_FLIGHT = 2
"""How many batches there are for each process: one that it scores, and one that waits for it."""


class BatchRow(NamedTuple):
    """One run of a case; the rows of a case follow each other."""

    eval_id: str
    run_index: int | None
    """Counted from 0; ``None`` where nothing is recorded."""
    case: str | None
    """The eval case as JSON text; ``None`` after the first row of a case."""
    recorded: str | None
    """The recorded run as JSON text; ``None`` where nothing is recorded."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the cases of all batches are scored."""

    config: EvalConfig
    criteria: tuple[str, ...]
    """The names of all criteria, in the order of their columns."""
    num_runs: int = 1
    """How many runs of each case there are to be."""
    source: str = "batch"
    """What messages call the rows."""
    judges: JudgeSetup | None = None
    """How judges are asked. Its ledger is opened wherever cases are scored; ``None``: no judge decides anything."""


def score_batch(rows: Iterable[BatchRow | tuple[str, int | None, str | None, str | None]], scoring: Scoring) -> WrittenPart:
    """Return the part that some cases make up, with everything that the criteria find.

    Args:
        rows: all runs of the cases, those of a case after each other.
        scoring: how they are scored.

    Raises:
        EvalSetError: with every problem of the rows.
        ConfigError: naming each criterion that cannot be applied to a case.
        UsageError: if judges decide anything without a ledger that all hosts share, as their answers could be paid for twice.
    """
    judged = check_ledger(scoring.config, scoring.judges, "batches")
    reader = CaseReader(scoring.source)
    with no_collection():
        cases = list(reader.cases(_rows(rows)))
    last = reader.last()
    reader.check()
    cases += [last] if last else []
    eval_set = EvalSet.model_construct(eval_set_id=scoring.source, eval_cases=tuple(row.case for row in cases))
    recording = Recording({row.case.eval_id: tuple(map(conversation_of, row.runs)) for row in cases if row.runs})
    texts = {row.case.eval_id: row.texts() for row in cases}
    here = {eval_id: criteria for eval_id, criteria in scoring.config.case_criteria.items() if eval_id in texts}
    config = scoring.config.model_copy(update={"case_criteria": here})
    with TemporaryDirectory(prefix="adk_eval_") as folder, opened(scoring.judges.ledger if judged and scoring.judges else False) as ledger:
        judges = replace(scoring.judges, answers=ledger) if judged and scoring.judges else JudgeSetup()
        evaluation = Evaluation(eval_set, config, CaseExecutor(recording, Options(num_runs=scoring.num_runs, judges=judges)))
        part = _OnePart(Path(folder), scoring.criteria, texts, judged=judged)
        report = wait(lambda: evaluation.execute(collector=part))
        return replace(part.writer.close_one(), judging=report.judging, trouble=ledger.settle() if ledger else "")


def check_ledger(config: EvalConfig, judges: JudgeSetup | None, who: str) -> bool:
    """Return whether judges decide anything by a config.

    Raises:
        UsageError: if they do, and the ledger is not one that all hosts share.
    """
    judged = judged_criteria(config)
    if judged and not (judges and is_shared(judges.ledger)):
        lead = f"judges decide {', '.join(judged)}: without a shared ledger, {who} would pay for answers twice"
        raise UsageError(f"{lead}; wanted ledger='postgresql://…'")
    return bool(judged)


def _rows(rows: Iterable[BatchRow | tuple[str, int | None, str | None, str | None]]) -> Iterator[Row]:
    for eval_id, run_index, *texts in rows:
        at = f"case {eval_id!r}{f', run {run_index + 1}' if run_index else ''}: $"
        value = {"eval_id": eval_id, **({} if run_index is None else {"run_index": run_index})}
        try:
            value |= {name: from_json(text) for name, text in zip(("case", "recorded"), texts, strict=True) if text is not None}
        except ValueError as error:
            yield Row(at, Problem(at, f"text that is not JSON ({error})", "JSON text"), 0)
        else:
            yield Row(at, value, 0)


class _OnePart(Collector):
    """Writes one part."""

    def __init__(self, folder: Path, criteria: Sequence[str], texts: Mapping[str, CaseTexts | None], *, judged: bool) -> None:
        super().__init__()
        self.writer = PartWriter(folder, criteria, Cleaner(), judged=judged, part_turns=None)
        self._texts = texts

    def add(self, case: EvalCase, runs: Sequence[CaseResult], /) -> None:
        self.writer.add(case, runs, self._texts[case.eval_id])


def taken(evaluation: Evaluation, parts: InParts, written: WrittenPart) -> int:
    """Have `parts` take the next part of an evaluation, and return how many case runs it has."""
    if written.judging:
        evaluation.executor.judges.add(written.judging)
    if written.trouble:
        evaluation.remarks.add(written.trouble)
    return parts.take(written, evaluation.planned).case_runs


def engine_of(evaluation: Evaluation, parts: InParts) -> Engine:
    """Return what scores an evaluation in as many processes as it asks for."""
    workers = evaluation.executor.options.workers
    if multiprocessing.parent_process() is not None:
        raise UsageError(f"workers={workers}: this process is itself a worker. {_GUARD}")

    async def collect() -> None:
        import pyarrow as pa  # noqa: PLC0415 - only runs that are kept need it
        import pyarrow.parquet as pq  # noqa: PLC0415

        scoring = Scoring(evaluation.config, parts.criteria, evaluation.num_runs, evaluation.eval_set.eval_set_id)
        progress, done = evaluation.executor.options.progress, 0
        total = len(evaluation.eval_set.eval_cases) * evaluation.num_runs
        async with aclosing(_scored(workers, batches_of(evaluation), scoring)) as scored:
            async for rows, written in scored:
                documents = pq.read_table(pa.BufferReader(written.files[CASES]), columns=["case"]).column("case").to_pylist()
                if documents != [row.case for row in rows if row.case is not None]:
                    raise RunError("a worker process returned the wrong cases")
                done += taken(evaluation, parts, written)
                if progress:
                    progress(done, total)

    return collect


def batches_of(evaluation: Evaluation) -> Iterator[list[BatchRow]]:
    """Yield the recorded cases of an evaluation as rows, cut as the parts of a run are."""
    batch: list[BatchRow] = []
    turns = weight = 0
    for eval_id, (text, recorded), (expected, *lengths) in _written(evaluation):
        batch += [BatchRow(eval_id, index, None if index else text, run) for index, run in enumerate(recorded)]
        if not recorded:
            batch.append(BatchRow(eval_id, None, text, None))
        turns += sum(max(1, length, expected) for length in (*lengths, *[0] * (evaluation.num_runs - len(lengths))))
        weight += len(text) + sum(map(len, recorded))
        if turns >= PART_TURNS or weight >= PART_BYTES:
            yield batch
            batch, turns, weight = [], 0, 0
    if batch:
        yield batch


def _written(evaluation: Evaluation) -> Iterator[tuple[str, tuple[str, list[str]], list[int]]]:
    """Yield the id of each case, its text and those of its runs, and how many turns the case and each of the runs have."""
    recording, source = evaluation.recording, evaluation.eval_set.eval_cases
    beside = isinstance(recording, StreamedRecording)
    if isinstance(source, StreamedCases) and isinstance(source.source, CaseFiles):
        for entry in source.source.written():
            (text, recorded), turns = entry.texts(), entry.turns
            if not beside:
                recorded, lengths = _recorded(recording, entry.eval_id)
                turns = [turns[0], *lengths]
            yield entry.eval_id, (text, recorded), turns
        return
    for case in source.handing_over() if isinstance(source, StreamedCases) else source:
        runs = source.all_taken(case.eval_id) if beside and isinstance(source, StreamedCases) else None
        recorded, lengths = _recorded(recording, case.eval_id, runs)
        yield case.eval_id, (dumps(case, indent=None).rstrip("\n"), recorded), [len(case.conversation or ()), *lengths]


def _recorded(recording: Recording | None, eval_id: str, runs: Sequence[RecordedRun] | None = None) -> tuple[list[str], list[int]]:
    """Return the recorded runs of a case as text, and how many turns each has."""
    if runs is None:
        runs = [recorded_run(conversation) for conversation in recording.runs.get(eval_id, ())] if recording else ()
    return [dumps_recorded(run, indent=None) for run in runs], [len(run.invocations) for run in runs]


_GUARD = "In a script, put the call below `if __name__ == '__main__':`"


async def _scored(
    workers: int, batches: Iterator[list[BatchRow]], scoring: Scoring
) -> AsyncGenerator[tuple[list[BatchRow], WrittenPart], None]:
    """Yield each batch with its part, in order, scored by processes. Batches that one took with it when it ended are scored once more."""
    posix = sys.platform != "win32"
    context = multiprocessing.get_context("forkserver" if posix else "spawn")
    if posix:
        context.set_forkserver_preload([__name__])
        resource_tracker.ensure_running()  # else the fork server's start does it, and unblocks SIGINT
        # With SIGINT blocked, as all that it starts then is from its first instruction on: Ctrl-C is for the process that waits.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    start = partial(ProcessPoolExecutor, workers, mp_context=context, initializer=_begin_work)
    executor, waiting = start(), deque[tuple[list[BatchRow], Future[WrittenPart], int]]()
    try:
        while True:
            while len(waiting) < workers * _IN_FLIGHT and (rows := next(batches, None)) is not None:
                waiting.append((rows, _sent(executor, rows, scoring), 1))
            if not waiting:
                return
            rows, future, attempts = waiting[0]
            try:
                written = await asyncio.wrap_future(future)
            except BrokenProcessPool:
                if attempts >= _MAX_ATTEMPTS:
                    trouble = "a worker process died twice on the same cases, perhaps out of memory; use fewer workers"
                    raise RunError(f"{trouble}. {_GUARD}") from None
                executor.shutdown(wait=True, cancel_futures=True)
                executor = start()
                for place, (rows, future, attempts) in enumerate(waiting):
                    if not future.done() or future.cancelled() or future.exception():
                        waiting[place] = rows, _sent(executor, rows, scoring), attempts + 1
                continue
            yield rows, written
            waiting.popleft()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _sent(executor: ProcessPoolExecutor, rows: list[BatchRow], scoring: Scoring) -> Future[WrittenPart]:
    try:
        return executor.submit(score_batch, rows, scoring)
    except (BrokenProcessPool, OSError) as error:  # the latter where it breaks while a process is started
        future: Future[WrittenPart] = Future()
        future.set_exception(BrokenProcessPool(str(error)))
        return future


def _begin_work() -> None:
    """Leave an interruption to the process that started this one, and end with it, however that ends."""

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which that process ends this one
    threading.Thread(target=end_with_parent, daemon=True).start()
