"""Score recorded conversations on Apache Spark, as one MLflow run.

Each task scores some cases into the files of a part. The driver takes exactly one attempt of each, reads and hashes the files itself, puts the
parts in order and logs them as `mlflow_adk_eval.evaluate` logs a run: the gate cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.traces.conversations import TracedCases
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import RunError, UsageError
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.evalset.row_cases import CaseRow
from mlflow_adk_eval.evalset.row_files import BATCH_CASES, ENDINGS, PARQUET
from mlflow_adk_eval.evalset.rows import streamed
from mlflow_adk_eval.judge.setup import JudgeArgs, JudgeSetup, judge_setup
from mlflow_adk_eval.ledger import ledger_source, opened
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.arrow import BATCH_ROWS, KEYED, RUNS, SCHEMA, Folder, keyed_traces, read_part, traced_runs, write_parts
from mlflow_adk_eval.runner.batches import Scoring, check_ledger, taken
from mlflow_adk_eval.runner.evaluation import Engine, Evaluation, Options
from mlflow_adk_eval.runner.keywords import SparkArgs, keywords, selected
from mlflow_adk_eval.runs.collect import InParts
from mlflow_adk_eval.runs.parts import ACTUAL, CASES, CELLS, VOTES
from mlflow_adk_eval.runs.stored_run import StoredPart
from mlflow_adk_eval.runtime import require_extra
from mlflow_adk_eval.store.reaching import HASTY, reaching_mlflow
from mlflow_adk_eval.tracking.client import connect, experiment_of
from mlflow_adk_eval.tracking.evaluate import LoggedEvaluation
from mlflow_adk_eval.tracking.logged_run import RunTarget, users_run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame  # pyright: ignore[reportMissingImports]

_MAX_NAMED = 5
_COLUMNS = ("eval_id", "case", "recorded")
_KINDS = (CASES, ACTUAL, CELLS)


@keywords(SparkArgs, RunTarget, judge_setup)
def evaluate(
    df: DataFrame,
    config: ConfigSource,
    out: str | Path,
    *,
    eval_set: EvalSetSource | None = None,
    eval_set_id: str = "eval_set",
    agent_version: str | None = None,
    **options: Unpack[SparkArgs],
) -> Report:
    """Evaluate the recorded conversations in a DataFrame, and log all of it as one run in MLflow.

    The executors need this package, and no MLflow server. Judges are asked by the executors, which need their keys and a ledger that all hosts
    share: without one, answers could be paid for twice. A budget and a quota are those of all executors together.

    Args:
        df: a row for each run of a case: ``eval_id``, ``run_index`` (counted from 0; may be left out if there is one run), ``case`` and
            ``recorded``, both as JSON text or structs. The order of the eval set is that of ``case_no`` where there is such a column,
            with one number for all rows of a case; else that of the ids. With an `eval_set`: the column ``trace``, with MLflow's traces as
            JSON text or structs.
        config: the criteria.
        out: a folder that driver and executors share, a path or an fsspec URI. What is written there is deleted in the end.
        eval_set: the cases, where `df` holds traces; ``None``: they are in `df`.
        eval_set_id: what the eval set is called; an `eval_set` has a unique id.
        agent_version: as of `evaluate`: the version of the agent that is recorded.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that
            votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.
        experiment: the MLflow experiment, by name or id; ``None``: the active one.
        run_name: the name of the MLflow run; ``None``: the agent and the time.
        traces: the most traces to log: of all turns or, if there are more, only of turns that did not pass; ``failed``: only of
            those, at most 2,000; ``True``: of all turns; ``False``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        pending_folder: where to save the evaluation if MLflow cannot store it; ``None``: ``adk_eval_pending``.
        register_prompts: whether to save the judges' prompts in MLflow's prompt registry; the run then links their versions.
        signing_key: signs the evaluation at the end: a PEM file with an ed25519 or ECDSA P-256 key, or its
            content; ``sigstore`` for the OIDC identity of this CI job, ``sigstore:FILE`` for the same with the services of a
            Sigstore ClientTrustConfig (extra `sigstore`); ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``, else no signature.

    Returns:
        The report, with the id of its run.

    Raises:
        UsageError: if a column is missing, or judges decide anything and the ledger is no PostgreSQL database.
        InputError: with every problem of the config, or of the rows of one part.
        RunError: if Spark could not do the job.
        TrackingError: if MLflow is unreachable.
    """
    chosen = load_config(config)
    judges = judge_setup(**selected(options, JudgeArgs))
    judged = check_ledger(chosen, judges, "Spark's hosts")
    job = uuid4().hex
    budget = replace(judges.budget, name=judges.budget.name or job)
    judges = replace(judges, ledger=ledger_source(judges.ledger) or False, budget=budget, scope=job)
    target = RunTarget(**selected(options, RunTarget), agent_version=agent_version, parent=users_run(options.get("tracking_uri")))
    client = connect(target.tracking_uri)
    with reaching_mlflow("the run could not be started", HASTY):  # before the cluster works for nothing
        experiment_of(client, target.experiment, inherited=target.parent.info.experiment_id if target.parent else None)
    place = f"{str(out).rstrip('/')}/adk_eval_{job}"
    folder, remarks = Folder(place), list[str]()
    with ExitStack() as at_end:
        at_end.callback(folder.remove)
        if eval_set is not None:
            loaded = load_inputs(eval_set, chosen)[0]
            runs, eval_set_id = _runs_in_traces(df, loaded, remarks), loaded.eval_set_id
            at_end.callback(runs.unpersist)
            df = _rows_of(runs, loaded)
        # All criteria that some case may have, in the order of their columns.
        names = tuple(dict.fromkeys((*chosen.by_criterion, *CRITERIA.informative)))
        num_runs, rows = _scored(df, Scoring(chosen, names, source=eval_set_id, judges=judges if judged else None), place)
        source = _Parts(folder, tuple(rows), eval_set_id, tuple(remarks))
        how = Options(num_runs=num_runs, judges=judges if judged else JudgeSetup())
        ledger = at_end.enter_context(opened(judges.ledger if judged else False))
        evaluation = LoggedEvaluation(streamed(source), Recording({}), chosen, how, target, ledger, engine=partial(_take, source))
        return evaluation.execute()[0]


def frame_of(path: str) -> DataFrame:
    """Return the rows of Parquet files, in the session of Spark that is there, or one that its configuration describes.

    Raises:
        UsageError: if these are other files.
        RunError: if Spark cannot read them.
    """
    with _on_spark():
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingImports]

        if path.endswith(tuple(ending for ending in ENDINGS if ending != PARQUET)):
            raise UsageError(f"{path}: Spark reads only Parquet; convert JSON Lines with `mlflow-adk-eval migrate`")
        return SparkSession.builder.appName("mlflow-adk-eval").getOrCreate().read.parquet(path)


def _scored(df: DataFrame, scoring: Scoring, out: str) -> tuple[int, list[dict[str, Any]]]:
    """Score everything and return the number of runs, and a row for each part, in order."""
    with _on_spark():
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra  # pyright: ignore[reportMissingImports]

        cases = _columns(df)
        order = "case_no" if "case_no" in cases.columns else "eval_id"
        counted = cases.groupBy("eval_id").agg(
            F.count("recorded").alias("runs"), F.count(F.lit(1)).alias("rows"), F.count_distinct(order).alias("numbers")
        )
        facts = counted.agg(
            F.max("runs"), F.sum("rows"), F.collect_list(F.when(F.col("numbers") != 1, F.coalesce("eval_id", F.lit("None"))))
        ).first()
        num_runs, num_rows, torn = facts or (0, 0, [])
        if torn:
            raise UsageError(f"{order}: wanted the same value in all rows of a case; it differs in {', '.join(torn[:_MAX_NAMED])}")
        if not num_runs:
            raise UsageError("recorded: found nothing; wanted recorded conversations, because Spark runs no live agents")
        scoring = replace(scoring, num_runs=num_runs)
        keys = list(dict.fromkeys((order, "eval_id")))
        parts = cases.repartitionByRange(num_rows // BATCH_ROWS + 1, *keys).sortWithinPartitions(*keys, "run_index")
        rows = parts.mapInArrow(partial(write_parts, scoring=scoring, out=out), SCHEMA).collect()
    return num_runs, sorted((row.asDict() for row in rows), key=lambda row: (row["first_no"] or 0, row["first_id"]))


def _runs_in_traces(df: DataFrame, eval_set: EvalSet, remarks: list[str]) -> DataFrame:
    """Return the conversations in a frame of traces, and remark which are of no case. They are kept until they are given back."""
    with _on_spark():
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra  # pyright: ignore[reportMissingImports]

        if "trace" not in df.columns:
            raise UsageError("the DataFrame has no column trace; wanted MLflow traces as JSON text or structs")
        keyed = df.select(_json_text(df, "trace")).mapInArrow(keyed_traces, KEYED).repartition("key").sortWithinPartitions("key")
        runs = keyed.mapInArrow(partial(traced_runs, cases=TracedCases(eval_set.eval_cases)), RUNS).persist()
        strangers = runs.where(F.col("eval_id").isNull())
        if problems := strangers.where(F.col("problem").isNotNull()).orderBy("label").limit(_MAX_NAMED).collect():
            raise UsageError("\n".join(row["problem"] for row in problems))
        if others := strangers.count():
            named = ", ".join(row["label"] for row in strangers.orderBy("label").limit(_MAX_NAMED).collect())
            noun, more = "conversation is" if others == 1 else "conversations are", ", …" * (others > _MAX_NAMED)
            remarks.append(f"{others} recorded {noun} of no case: {named}{more}")
    return runs


def _rows_of(conversations: DataFrame, eval_set: EvalSet) -> DataFrame:
    """Return a row for each run of a case, and one for each case without."""
    from pyspark.sql import Window  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingImports]
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # pyright: ignore[reportMissingImports]

    listed = [(number, case.eval_id, dumps(case, indent=None)) for number, case in enumerate(eval_set.eval_cases)]
    cases = conversations.sparkSession.createDataFrame(listed, "case_no long, eval_id string, case string")
    order = Window.partitionBy("eval_id").orderBy("began", "first_trace")
    number = (F.row_number().over(order) - 1).alias("run_index")
    runs = conversations.where(F.col("eval_id").isNotNull()).select("eval_id", "recorded", number)
    return cases.join(runs, "eval_id", "left")


def _json_text(df: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra  # pyright: ignore[reportMissingImports]
    from pyspark.sql.types import StructType  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    return F.to_json(name).alias(name) if isinstance(df.schema[name].dataType, StructType) else F.col(name).cast("string").alias(name)


def _columns(df: DataFrame) -> DataFrame:
    """Return the columns that are scored, with JSON as text."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra  # pyright: ignore[reportMissingImports]

    if missing := [name for name in _COLUMNS if name not in df.columns]:
        raise UsageError(f"the DataFrame has no column {missing[0]}; wanted {', '.join(_COLUMNS)}, and optionally run_index and case_no")
    texts = [_json_text(df, name) for name in _COLUMNS]
    run_index = F.coalesce(F.col("run_index").cast("long"), F.lit(0)) if "run_index" in df.columns else F.lit(0).cast("long")
    number = [F.col("case_no").cast("long").alias("case_no")] if "case_no" in df.columns else []
    return df.select(*texts, run_index.alias("run_index"), *number)


@contextmanager
def _on_spark() -> Generator[None]:
    """Raise what a task raised within, if that was an error of ours, as one; else that Spark failed, or that there is none."""
    with require_extra("spark", "scoring on Spark"):
        from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingImports]
    try:
        yield
    except PySparkException as error:
        lines = str(error).splitlines()
        ours = next((line for line in reversed(lines) if line.startswith("mlflow_adk_eval.errors.")), "")
        if not ours:
            reason = next((line for line in reversed(lines) if line.strip()), type(error).__name__)
            raise RunError(f"Spark could not score the cases: {reason}") from error
        start = max(place for place, line in enumerate(lines) if line == ours)
        rest = [line for line in lines[start + 1 :] if line.startswith("  ") and not line.lstrip().startswith("at ")]
        raise UsageError("\n".join([ours.partition(": ")[2], *rest])) from error


@dataclass(frozen=True, slots=True)
class _Parts:
    """The cases of parts that tasks have written, as a source."""

    folder: Folder
    rows: Sequence[Mapping[str, Any]]
    eval_set_id: str
    remarks: tuple[str, ...]

    @property
    def head(self) -> EvalSet:
        return EvalSet(eval_set_id=self.eval_set_id, eval_cases=())

    def batches(self, size: int = BATCH_CASES) -> Iterator[Sequence[CaseRow]]:
        for row in self.rows:
            written = read_part(self.folder, row, (CASES,))
            files = {written.part.name(kind): content for kind, content in written.files.items()}
            cases = [CaseRow(case) for case in StoredPart(written.part, files, self.eval_set_id).cases()]
            for start in range(0, len(cases), size):
                yield cases[start : start + size]


def _take(source: _Parts, evaluation: Evaluation, parts: InParts) -> Engine:
    async def collect() -> None:
        evaluation.remarks.update(source.remarks)
        for row in source.rows:
            taken(evaluation, parts, read_part(source.folder, row, (*_KINDS, VOTES) if evaluation.plan.judged else _KINDS))

    return collect
