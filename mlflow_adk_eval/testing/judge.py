"""A judge that follows a script: no network, no keys and no model, and what it answers depends on its script alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio

from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Refused, Request, ResolvedJudge, Unavailable
from mlflow_adk_eval.redact import message_of

__all__ = ["Answer", "Refused", "Request", "ScriptedJudge", "Unavailable", "answer_for"]

Labels = str | Mapping[str, str | None]
"""The verdict on every item, or on each, by its key (``item_1``) or its text; ``None`` leaves an item out of the answer."""
Line = Labels | Answer | Exception
"""What the judge does with a request: a verdict that it gives, an answer in its very words, or an error that it raises."""
Script = str | Mapping[str, Line] | Callable[[Request], Line]
"""One verdict for everything, or a line by criterion, or a function."""


def answer_for(request: Request, labels: Labels, rationale: str = "as the script says", remarks: Mapping[str, str] | None = None) -> Answer:
    """Return the answer that gives these verdicts, in the JSON that `request` asks for.

    Args:
        request: what is asked.
        labels: the verdicts. A label that the request does not offer is given all the same.
        rationale: the explanation of each.
        remarks: further texts that the request asks for, by name; empty where nothing is given.

    Raises:
        ValueError: if there is no label for an item.
    """
    texts = {**(remarks or {}), "rationale": rationale}
    properties: Mapping[str, Any] = request.schema["properties"]
    if "verdict" in properties:
        if not isinstance(labels, str) and len(labels) != 1:
            raise ValueError(f"wanted one verdict; the script gives {len(labels)}")
        only = labels if isinstance(labels, str) else next(iter(labels.values()))
        return Answer(text=json.dumps(_verdict(properties, only, texts), ensure_ascii=False))
    given = {key: _label(request, key, labels) for key in properties}
    filled = {key: _verdict(properties[key]["properties"], label, texts) for key, label in given.items() if label is not None}
    return Answer(text=json.dumps(filled, ensure_ascii=False))


class ScriptedJudge(ResolvedJudge):
    """A judge that follows a script, and remembers what it was asked."""

    def __init__(
        self,
        script: Script,
        *,
        rationale: str = "as the script says",
        model: str = "scripted",
        address: str | None = None,
        latency_s: float = 0.0,
        fail_every: int | None = None,
        failure: Exception | None = None,
    ) -> None:
        """Take the script.

        Args:
            script: one label for every verdict; or, by the name of the criterion, a label, labels by item, an `Answer` or an
                error; or a function from a `Request` to one of these.
            rationale: the explanation of each verdict.
            model: what reports call the judge.
            address: what its answers are kept under, so that a resumed run uses them again; ``None``: they are not kept.
            latency_s: how long each answer takes, in seconds.
            fail_every: each call whose number is a multiple of it fails, the first call being number 1; ``None``: none does.
            failure: how it fails; ``None``: as a model that is overloaded.
        """
        self._script = script
        self._rationale = rationale
        self._model = model
        self._address = address
        self._latency_s = latency_s
        self._fail_every = fail_every
        self._failure = failure or Unavailable("the script says so", overloaded=True)
        self._in_flight = 0
        self.requests: list[Request] = []
        """Every request, in order, those that failed included."""
        self.most_in_flight = 0
        """The most requests that were under way at the same time."""
        self.closed = False
        """Whether its connections would be given back."""

    @property
    def address(self) -> str | None:
        """What its answers are kept under."""
        return self._address

    def asked(self, criterion: str) -> list[Request]:
        """Return the requests of one criterion."""
        return [request for request in self.requests if request.name.startswith(criterion)]

    async def ask(self, request: Request) -> Answer:
        """Answer as the script says."""
        self.requests.append(request)
        number = len(self.requests)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await anyio.sleep(self._latency_s)
        finally:
            self._in_flight -= 1
        if self._fail_every and number % self._fail_every == 0:
            raise self._failure
        return self._answer(request)

    async def aclose(self) -> None:
        """Note that the judge is no longer needed."""
        self.closed = True

    def _answer(self, request: Request) -> Answer:
        try:
            line = self._line(request)
            answer = line if isinstance(line, Answer | Exception) else answer_for(request, line, self._rationale)
        except NoAnswer:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Refused(f"the judge's script: {type(error).__name__}: {message_of(error)}") from error
        if isinstance(answer, Exception):
            raise answer
        counted = replace(answer, model=answer.model or self._model, latency_s=answer.latency_s or self._latency_s)
        if counted.input_tokens is None:  # a count of words serves as one of tokens
            asked = f"{request.instructions} {request.text}"
            counted = replace(counted, input_tokens=len(asked.split()), output_tokens=len(answer.text.split()))
        return counted

    def _line(self, request: Request) -> Line:
        if isinstance(self._script, str):
            return self._script
        if not isinstance(self._script, Mapping):
            return self._script(request)
        if not (names := [name for name in self._script if request.name.startswith(name)]):
            raise ValueError(f"it has no entry for {request.name!r}, only for {', '.join(self._script) or 'nothing'}")
        return self._script[max(names, key=len)]


def _verdict(properties: Mapping[str, Any], label: str | None, texts: Mapping[str, str]) -> Json:
    return {name: label if name == "verdict" else texts.get(name, "") for name in properties if name != "verdict" or label is not None}


def _label(request: Request, key: str, labels: Labels) -> str | None:
    if isinstance(labels, str):
        return labels
    for name in (key, request.blocks.get(key, "")):
        if name in labels:
            return labels[name]
    raise ValueError(f"no label for {key} ({request.blocks.get(key, 'without a text')}); there are labels for {', '.join(labels)}")
