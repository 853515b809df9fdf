"""``response_match_score``: ROUGE-1 between the agent's answer and the reference, in any script.

Both texts become words (`text.words`: stemmed where they are English, single characters where a script has no spaces), and the score is the
F-measure of the words they share. It is bit for bit the score of ADK, which computes it with rouge-score and nltk; the stemmer here is our
own, because importing nltk takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_adk_eval.config.criteria import CriterionSettings
from mlflow_adk_eval.config.spec import CriterionSpec
from mlflow_adk_eval.criteria.criterion import CaseRun, judge_pairs
from mlflow_adk_eval.criteria.text.words import rouge_1, tokens
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.results.outcomes import Judged, Scored


@dataclass(frozen=True, slots=True)
class ResponseMatch:
    """ROUGE-1 F-measure of each turn's final response; the case score is the mean.

    Source: ADK's evaluation criteria. Precision and recall are kept beside the score.
    """

    settings: CriterionSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return judge_pairs(run, _turn)


def _turn(actual: Invocation, expected: Invocation) -> Scored:
    response, reference = tokens(actual.final_text), tokens(expected.final_text)
    overlap = rouge_1(response, reference)
    empty = [side for side, found in (("response", response), ("reference", reference)) if not found]
    note = f" The {' and the '.join(empty)} {'has' if len(empty) == 1 else 'have'} no words." if empty else ""
    return Scored(
        overlap.f_measure,
        f"ROUGE-1 precision {overlap.precision:.3f}, recall {overlap.recall:.3f}.{note}",
        {"precision": overlap.precision, "recall": overlap.recall},
    )


SPECS = (
    CriterionSpec(
        name="response_match_score",
        about="ROUGE-1 of each turn's final response beside the expected one",
        kept="precision and recall",
        needs=("reference", "expected_response"),
        make=ResponseMatch,
    ),
)
