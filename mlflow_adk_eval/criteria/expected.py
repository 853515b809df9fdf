"""What the criteria that compare with a reference need of a turn: an expected response, or expected calls.

Planning asks this of every case before the agent is paid, and a criterion of every turn that it scores, so both say the same.
"""

from __future__ import annotations

from mlflow_adk_eval.config.spec import ReferenceSettings
from mlflow_adk_eval.criteria.text import has_words
from mlflow_adk_eval.criteria.transcript import words_of
from mlflow_adk_eval.evalset.models import OPEN_CALLS, EvalCase, Invocation


class ExpectedResponseSettings(ReferenceSettings):
    """A criterion that compares responses with the expected ones."""

    def text_of(self, turn: Invocation) -> str:
        """Return the text that is compared; with what was said on the way, if the settings say so."""
        return words_of(turn, include_intermediate=self.include_intermediate_responses_in_final)

    def lack(self, case: EvalCase, index: int) -> str:
        """Return that a turn has no expected response."""
        if lacking := super().lack(case, index):
            return lacking
        turns = case.conversation or ()
        if index >= len(turns):
            return ""
        return self.lack_of_text(self.text_of(turns[index]))

    def lack_of_text(self, reference: str) -> str:
        """Return why a text is no reference; empty where it is one."""
        return "" if reference.strip() else "an expected response"


class ExpectedWordsSettings(ExpectedResponseSettings):
    """A criterion that compares the words of responses with those of the expected ones."""

    def lack_of_text(self, reference: str) -> str:
        """Return why a text is no reference: it is empty, or has no words."""
        if lacking := super().lack_of_text(reference):
            return lacking
        return "" if has_words(reference) else "words in the expected response"


class ExpectedCallsSettings(ReferenceSettings):
    """A criterion that compares calls with the expected ones."""

    def lack(self, case: EvalCase, index: int) -> str:
        """Return that a turn says nothing of calls. In ADK's format it then expects none, unless such turns are left out."""
        if lacking := super().lack(case, index):
            return lacking
        turns = case.conversation or ()
        if OPEN_CALLS in case.tags:
            return f"the expected calls, which nobody has written (its tag is {OPEN_CALLS!r})"
        if not self.only_where_expected or index >= len(turns):
            return ""
        return "expected calls (no intermediate_data)" if turns[index].intermediate_data is None else ""
