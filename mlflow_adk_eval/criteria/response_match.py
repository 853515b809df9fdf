"""``response_match_score``: ROUGE-1 between the agent's answer and the reference, in any script.

Both texts become words (`text.tokens`: stemmed where they are English, single characters where a script has no spaces), and the score is the
F-measure of the words they share. It is bit for bit the score of ADK, which computes it with rouge-score and nltk; the stemmer here is our
own, because importing nltk takes seconds. A turn whose reference has no response or no words (such as an emoji) has no score, since nothing can
be compared with it, and neither has one whose response is media. A response without words beside a reference that has some scores 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_adk_eval.config.spec import CriterionSpec
from mlflow_adk_eval.criteria.criterion import NO_REFERENCE, CaseRun, judge_pairs
from mlflow_adk_eval.criteria.expected import ExpectedWordsSettings
from mlflow_adk_eval.criteria.text import rouge_1, tokens
from mlflow_adk_eval.criteria.transcript import content_material
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored

_LONGEST = 200


NO_WORDS = Errored("the expected response has no words to compare with, such as one that is an emoji")


@dataclass(frozen=True, slots=True)
class ResponseMatch:
    """ROUGE-1 F-measure of each turn's final response; the case score is the mean.

    Source: ADK's evaluation criteria. Precision and recall are kept beside the score.
    """

    settings: ExpectedWordsSettings

    def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own."""
        return judge_pairs(run, self._turn, self.settings)

    def _turn(self, actual: Invocation, expected: Invocation) -> Outcome:
        given, wanted = self.settings.text_of(actual), self.settings.text_of(expected)
        if not wanted.strip():
            return NO_REFERENCE
        reference = tokens(wanted)
        if not reference:
            return NO_WORDS
        if not given and (other := no_text(actual)):
            return other
        response = tokens(given)
        overlap = rouge_1(response, reference)
        rationale = f"ROUGE-1 precision {overlap.precision:.3f}, recall {overlap.recall:.3f}."
        if not response:
            rationale += " The response has no words."
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
        settings=ExpectedWordsSettings,
        reads_intermediate=True,
        needs=("reference", "expected_response"),
        make=ResponseMatch,
    ),
)
