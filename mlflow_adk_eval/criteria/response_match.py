"""``response_match_score``: ROUGE-1 between the agent's answer and the reference, in any script.

Both texts become words (`text.tokens`: stemmed where they are English, single characters where a script has no spaces), and the score is the
F-measure of the words they share. It is bit for bit the score of ADK, which computes it with rouge-score and nltk; the stemmer here is our
own, because importing nltk takes seconds. A turn whose reference has no response has no score, and neither has one whose response is media.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_adk_eval.config.spec import CriterionSettings, CriterionSpec
from mlflow_adk_eval.criteria.criterion import NO_REFERENCE, CaseRun, judge_pairs
from mlflow_adk_eval.criteria.text import rouge_1, tokens
from mlflow_adk_eval.criteria.transcript import content_material
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class ResponseMatch:
    """ROUGE-1 F-measure of each turn's final response; the case score is the mean.

    Source: ADK's evaluation criteria. Precision and recall are kept beside the score.
    """

    settings: CriterionSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return judge_pairs(run, _turn)


def _turn(actual: Invocation, expected: Invocation) -> Outcome:
    given, wanted = actual.final_text, expected.final_text
    if not wanted.strip():
        return NO_REFERENCE
    if not given and (other := no_text(actual)):
        return other
    response, reference = tokens(given), tokens(wanted)
    overlap = rouge_1(response, reference)
    empty = [side for side, words in (("response", response), ("reference", reference)) if not words]
    note = f" The {' and the '.join(empty)} {'has' if len(empty) == 1 else 'have'} no words." if empty else ""
    rationale = f"ROUGE-1 precision {overlap.precision:.3f}, recall {overlap.recall:.3f}.{note}"
    return Scored(overlap.f_measure, rationale, {"precision": overlap.precision, "recall": overlap.recall})


def no_text(turn: Invocation) -> Errored | None:
    """Return the error of an answer without a text of which something else can be named, such as an image; ``None`` where there is nothing."""
    other = content_material(turn.final_response)
    if other.text:
        return Errored(f"the response has no text to compare, but {cut(other.text, _LONGEST)}")
    return None


SPECS = (
    CriterionSpec(
        name="response_match_score",
        origin="adk",
        about="ROUGE-1 of each turn's final response against the expected one",
        kept="precision and recall",
        needs=("reference", "expected_response"),
        make=ResponseMatch,
    ),
)
