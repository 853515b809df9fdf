"""How a run went that evaluated only until its policy was decided: in which order, in which rounds, and which cases it left.

The order follows from the eval set and the policy alone, so nobody can choose it by what is in the answers. A run holds results of the first
cases of that order, and its `UntilDecided` the others: with both, the gate knows the whole eval set, and looks again at each round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from mlflow_adk_eval.errors import EvalSetError, Problem
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.text import counted

SEQUENCE = "sequence.json"
"""The artifact of a run that evaluated until it was decided."""
FIRST_ROUND, ROUNDS_GROW = 20, 1.5
"""How many cases the first round has, and how many times more each later one."""


@dataclass(frozen=True, slots=True)
class Round:
    """One look at the results so far."""

    cases: int
    """How many cases of the order there were."""
    runs: int
    """How many runs of each there were."""
    open: tuple[str, ...]
    """The demands that more of them could decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilDecided:
    """How a run evaluated until it was decided."""

    policy_sha256: str
    """The digest of the policy that decided."""
    baseline_sha256: str = ""
    """The hash of the evidence that it compared with; empty where it compared nothing."""
    order: tuple[str, ...]
    """The ids of all cases in the order in which they were run."""
    rounds: tuple[Round, ...] = ()
    stopped: str = ""
    """Why, as a sentence."""
    left: tuple[tuple[int, EvalCase], ...] = ()
    """The cases that were not run, each with its place in the eval set."""

    def __str__(self) -> str:
        """Return how far it came, as pages show it."""
        return f"{len(self.order) - len(self.left):,} of {counted(len(self.order), 'case')} (until decided)"

    def dumps(self, document: Callable[[EvalCase], str]) -> bytes:
        """Return the artifact; `document`: makes JSON of a case."""
        left = [[place, from_json(document(case))] for place, case in self.left]
        return to_json({**_SEQUENCE.dump_python(replace(self, left=())), "left": left})

    def whole(self, evaluated: EvalSet) -> EvalSet:
        """Return the eval set with the cases that were not run; wherever these say that they belong, no case is lost."""
        cases = list(evaluated.eval_cases)
        for place, case in sorted(self.left, key=lambda each: each[0]):
            cases.insert(place, case)
        return evaluated.model_copy(update={"eval_cases": tuple(cases)})


_SEQUENCE = TypeAdapter(UntilDecided)


def read_sequence(content: bytes, source: str) -> UntilDecided:
    """Return what an artifact says.

    Raises:
        EvalSetError: if it cannot be read.
    """
    try:
        return _SEQUENCE.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("$", *first["loc"])))
        raise EvalSetError(source, [Problem(where, str(first["msg"]), "what `run --until-decided` writes")]) from None


def order_of(eval_ids: Iterable[str], digest: str, must_pass: Collection[str], copies: Mapping[str, str]) -> list[list[str]]:
    """Return all cases in the order in which they are run: those that must pass, then by chance. Cases of one content go together.

    Args:
        eval_ids: all of them, in the order of the eval set.
        digest: that of the eval set, without which nobody knows the order before the cases are made.
        must_pass: the ids of the cases that must pass.
        copies: the cases that have the content of an earlier one, each with that one.
    """
    first = {copies.get(eval_id, eval_id) for eval_id in must_pass}

    def place(eval_id: str) -> tuple[bool, bytes]:
        original = copies.get(eval_id, eval_id)
        return original not in first, hashlib.sha256(f"{digest}\0{original}".encode("utf-8", "surrogatepass")).digest()

    return [list(group) for _, group in groupby(sorted(eval_ids, key=place), key=place)]
