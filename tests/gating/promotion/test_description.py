"""What the registry's page says of a version: the last decision, why, and where to look; and nothing that somebody wrote is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.record import Record, Target, stamped
from mlflow_adk_eval.results.decision import Decision
from tests.gating.entrant import BAD, Entrant
from tests.gating.gate_kit import Lab, evidence_of
from tests.gating.promotion.claim_kit import version_id


@pytest.fixture
def good(lab: Lab, model: str) -> Entrant:
    return Entrant(lab, model)


@pytest.fixture
def bad(lab: Lab, model: str) -> Entrant:
    return Entrant(lab, model, good=False)


def described(lab: Lab, entrant: Entrant) -> str:
    return str(lab.client.get_model_version(entrant.name, entrant.version).description or "")


def test_a_pass_and_a_refusal_are_described_with_reasons_and_links(lab: Lab, good: Entrant, bad: Entrant) -> None:
    assert good.promote().passed
    told = described(lab, good)
    tags, record = good.tags, good.record
    assert record.run_id == good.run_id
    experiment = lab.client.get_run(good.run_id).info.experiment_id
    assert told.startswith("passed for the alias champion, ")
    assert tags["adk_eval.gate.reason"].partition("; ")[0] in told
    assert len(list(filter(None, told.partition("[//]")[0].splitlines()))) == 3
    run = f"#/experiments/{experiment}/runs/{good.run_id}"
    assert f"[evaluation run]({run}) · [promotion record]({run}/artifacts/{record.path})" in told
    assert f" · [report]({run}/artifacts/adk_eval/report.html)" in told
    # MLflow's page of a version hides what begins with `mlflow.`, and has four tags to show.
    shown = {"adk_eval.gate", "adk_eval.gate.alias", "adk_eval.gate.record", "adk_eval.gate.reason"}
    assert set(tags) == {*shown, "mlflow.adk_eval.gate.passed.champion"}
    assert not bad.promote(raise_on_failure=False).passed
    assert described(lab, bad).startswith("failed for the alias champion, ")


def test_a_refusal_after_a_pass_leaves_the_description_of_the_pass(lab: Lab, good: Entrant) -> None:
    good.promote()
    before = described(lab, good)
    good.run_id = lab.log(evidence_of(BAD, model_id=good.model_id))
    assert not good.promote(raise_on_failure=False).passed
    assert described(lab, good) == before


def test_what_people_wrote_stays(lab: Lab, bad: Entrant) -> None:
    lab.client.update_model_version(bad.name, bad.version, "Trained by **Ada**.")
    for _ in range(2):
        bad.promote(raise_on_failure=False)
    told = described(lab, bad)
    assert told.endswith("\n\nTrained by **Ada**.")
    assert told.count("for the alias champion") == told.count("Ada") == 1


RECORD = Record(
    target=Target(name="home", version="1", alias="champion"),
    version=version_id("1"),
    previous=None,
    claim=1,
    policy=DEFAULT_POLICY,
    decision=stamped(
        Decision(verdict="failed", reasons=(), run_id="0a", evidence_sha256="", policy_sha256=""), datetime(2026, 11, 21, tzinfo=UTC)
    ),
)


@given(st.lists(st.text(max_size=300), max_size=30), st.text(max_size=200))
def test_no_text_of_others_is_a_mark_a_link_or_too_long(reasons: list[str], who: str) -> None:
    record = replace(RECORD, decision=replace(RECORD.decision, reasons=tuple(reasons), decided_by=who))
    told = record.description("1", "")
    assert len(told) <= 5000
    tokens = [inner for token in MarkdownIt("commonmark", {"html": True}).parse(told) for inner in (token, *(token.children or ()))]
    assert sum(token.type == "link_open" for token in tokens) == (3 if told else 0)
    assert not [token for token in tokens if token.type in {"html_block", "html_inline", "image", "fence", "code_block", "heading_open"}]
    assert sum(token.type == "strong_open" for token in tokens) == 0


@given(st.text(max_size=6000))
def test_a_second_decision_replaces_the_first_and_keeps_the_rest(rest: str) -> None:
    once = RECORD.description("1", rest)
    assert rest.strip() in once
    assert RECORD.description("1", once) == once
    assert len(once) <= max(5000, len(rest))
