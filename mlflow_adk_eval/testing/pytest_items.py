"""Eval sets and their cases as pytest collects and runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback, TerminalRepr  # noqa: PLC2701 - what `Item.repr_failure` is to return has no public name
from _pytest._io import TerminalWriter  # noqa: PLC2701 - nor what that is written to

from mlflow_adk_eval.config.inputs import EvalFile, read_file
from mlflow_adk_eval.errors import AdkEvalError, foreign_code
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.runner.evaluation import ExecutedCase
from mlflow_adk_eval.testing.evaluator import Job
from mlflow_adk_eval.testing.failure import Line, Tone, failure_of, kind_of, line, summary_of, text_of
from mlflow_adk_eval.text import numbered


@dataclass(frozen=True, slots=True, kw_only=True)
class AdkOptions:
    """What the command line, or else the ini file, says."""

    agent: str
    config: Path | None = None
    num_runs: int = 1
    judge: str | None = None
    concurrency: int = 4
    case_timeout: float | None = None
    turn_timeout: float | None = None
    user_simulator: str | None = None
    replay: str | None = None
    replay_models: bool = False
    experiment: str | None = None


class CaseRunner(Protocol):
    """What runs the cases: the session."""

    options: AdkOptions

    def prepare(self, file: EvalFile) -> None:
        """Make the agent and the judges ready."""
        ...

    def finished(self, item: EvalCaseItem) -> ExecutedCase:
        """Wait for the result of a case."""
        ...


SUFFIXES = (".test.json", ".evalset.json")
"""How the names of eval sets end."""

_MARKUP: dict[Tone, dict[str, bool]] = {
    "head": {"bold": True},
    "expected": {"red": True},
    "actual": {"green": True},
    "missed": {"red": True, "bold": True},
    "unknown": {"yellow": True, "bold": True},
    "dim": {"light": True},
}
_UNSAFE = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BRACKETS = str.maketrans("[]", "()")


class EvalSetFile(pytest.File):
    """An eval set."""

    def __init__(self, *, adk: CaseRunner, **node: Any) -> None:
        """Take the session that runs its cases."""
        super().__init__(**node)
        self._adk = adk

    def collect(self) -> Iterator[EvalCaseItem]:
        """Yield a test for each run of each case."""
        options = self._adk.options
        try:
            near = self.path.relative_to(Path.cwd()) if self.path.is_relative_to(Path.cwd()) else self.path  # as messages call it
            file = read_file(near, options.config)
        except AdkEvalError as error:
            raise self.CollectError(str(error)) from None
        names = safe_names(file.eval_set.eval_ids)
        for case in file.eval_set.eval_cases:
            for run_index in range(options.num_runs):
                run = f"[run{run_index + 1}]" if options.num_runs > 1 else ""
                name = f"{names[case.eval_id]}{run}"
                yield EvalCaseItem.from_parent(self, name=name, adk=self._adk, job=Job(file, case, run_index))


class EvalCaseItem(pytest.Item):
    """One run of one case."""

    def __init__(self, *, adk: CaseRunner, job: Job, **node: Any) -> None:
        """Take what to do, and who does it."""
        super().__init__(**node)
        self._adk = adk
        self.job = job
        self.result: CaseResult | None = None
        """What came of it, once it has run."""
        self.seconds: float | None = None
        """How long it took, which is not how long this test waited for it."""
        self.add_marker(pytest.mark.adk)
        # Said of most of ADK's own classes; where warnings are errors it would end every conversation.
        self.add_marker(pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"))

    @foreign_code("the agent")
    def setup(self) -> None:
        """Make the agent and the judges ready."""
        self._adk.prepare(self.job.file)

    @foreign_code("the agent")
    def runtest(self) -> None:
        """Wait for the result."""
        self.result, self.seconds = None, None
        finished = self._adk.finished(self)
        self.result, self.seconds = finished.result, finished.seconds
        scores = {result.criterion: "not evaluated" if result.score is None else result.score for result in finished.result.results}
        properties: dict[str, object] = {"adk_verdict": kind_of(finished.result), **scores}
        self.user_properties = [*(pair for pair in self.user_properties if pair[0] not in properties), *properties.items()]
        if finished.result.verdict != "passed":
            raise CaseNotPassed(finished.result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        """Return what was expected and what the agent did; of an error that explains itself, its message."""
        error = excinfo.value
        if isinstance(error, CaseNotPassed):
            return Failure(failure_of(error.case, self.job.file.config), self.path, summary_of(error.case))
        if isinstance(error, AdkEvalError):
            message = str(error)
            return Failure([line(said, "unknown") for said in message.splitlines()], self.path, message.partition("\n")[0])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the case stands; pytest wants a line, and JSON has none worth naming."""
        return self.path, 0, self.name


class CaseNotPassed(Exception):  # noqa: N818 - a verdict, not a mishap
    """A case missed a threshold, or was not fully evaluated."""

    def __init__(self, case: CaseResult) -> None:
        """Carry the result."""
        super().__init__(kind_of(case))
        self.case = case


class Failure(ReprExceptionInfo):
    """A failure without a traceback, in a shape that keeps its short message on the way from one process to another."""

    def __init__(self, lines: Sequence[Line], path: Path, message: str) -> None:
        """Take the lines, the file and the short message."""
        traceback = ReprTraceback([ReprEntryNative([f"{text_of(lines)}\n"])], None, "native")
        super().__init__(reprtraceback=traceback, reprcrash=ReprFileLocation(str(path), 0, message))
        self._lines = lines

    def __str__(self) -> str:
        return text_of(self._lines)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the lines, in colours where the terminal has them."""
        for spans in self._lines:
            for text, tone in spans:
                tw.write(text, **_MARKUP.get(tone, {}))
            tw.line()


def safe_names(eval_ids: Sequence[str]) -> dict[str, str]:
    """Return what tests call cases: their ids without what has a meaning in a node id, each one different.

    >>> safe_names(["a", "a::b", "a:b", "x[1]"])
    {'a': 'a', 'a::b': 'a:b', 'a:b': 'a:b~2', 'x[1]': 'x(1)'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for eval_id in eval_ids:
        visible = _UNSAFE.sub(lambda unsafe: unsafe[0].encode("unicode_escape").decode("ascii"), eval_id)
        name = re.sub(r":{2,}", ":", visible.translate(_BRACKETS)).strip(" :") or "(no name)"
        names[eval_id] = numbered(name, taken, "~")
        taken.add(names[eval_id])
    return names
