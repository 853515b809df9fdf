"""What the last looks before an alias is set find, what `verify` and `audit` compare, and how often MLflow is asked: all of it quickly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.api import audit
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Record, Target
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.results.decision import Decision
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import TRAJECTORY, Lab

COMPARES: dict[str, Any] = {"rules": {TRAJECTORY: {"min": 0.5, "max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}


class Meanwhile(MlflowStore):
    """A store in which something happens after the decision, right before the last looks."""

    def __init__(self, lab: Lab, happens: Callable[[], object]) -> None:
        super().__init__(lab.uri, lab.uri)
        self.happens = happens

    def write(self, record: Record) -> None:
        happens, self.happens = self.happens, lambda: None
        super().write(record)
        happens()


def promoted(store: MlflowStore, entrant: Entrant, policy: Any = None) -> Decision:
    target = Target(name=entrant.name, version=entrant.version, alias="champion")
    demanded = DEFAULT_POLICY if policy is None else load_policy(policy)
    search = BaselineSearch(store=store, policy=demanded, model=entrant.name, candidate=target)
    return promote_in(store, target, entrant.run_id, demanded, baseline=search)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            "UPDATE model_versions SET status = 'PENDING_REGISTRATION' WHERE name = ?",
            "became PENDING_REGISTRATION while the evidence was being read",
        ),
        ("UPDATE model_versions SET source = 'models:/m-1' WHERE name = ?", "is now made from 'models:/m-1', not from 'models:/m-"),
        ("UPDATE model_versions SET creation_time = 1 WHERE name = ?", "their creation times differ"),
    ],
)
def test_a_version_that_changes_after_the_decision_gets_no_alias(lab: Lab, model: str, edit: str, reason: str) -> None:
    entrant = Entrant(lab, model)
    decision = promoted(Meanwhile(lab, lambda: lab.execute(edit, model)), entrant)
    assert decision.verdict == "undecided"
    assert reason in decision.reasons[0]
    assert lab.alias(model) is None


def test_a_model_that_is_created_again_after_the_decision_gets_no_alias(lab: Lab, model: str) -> None:
    good = Entrant(lab, model)

    def again() -> None:
        lab.client.delete_registered_model(model)
        Entrant(lab, model, good=False)

    decision = promoted(Meanwhile(lab, again), good)
    assert decision.verdict == "undecided"
    assert "was deleted and recreated" in decision.reasons[0]
    assert lab.alias(model) is None


def test_an_alias_that_moves_after_the_decision_is_left_where_it_is(lab: Lab, model: str) -> None:
    good, other = Entrant(lab, model), Entrant(lab, model)
    decision = promoted(Meanwhile(lab, other.set_by_hand), good)
    assert (
        decision.reasons[0] == "the alias champion moved from no version to version 2 while the evidence was being read, so it was not set"
    )
    assert lab.alias(model) == other.version


def test_the_alias_that_was_compared_with_moves_after_the_decision(lab: Lab, model: str) -> None:
    other, another, good = Entrant(lab, f"{model}_other"), Entrant(lab, f"{model}_other"), Entrant(lab, model)
    other.promote()
    against = COMPARES | {"baseline": {"alias": "champion", "model": other.name}}
    decision = promoted(Meanwhile(lab, another.set_by_hand), good, against)
    assert decision.verdict == "undecided"
    assert f"but the alias champion of {other.name!r} is at version 2 now" in decision.reasons[0]


def test_who_deploys_compares_with_what_the_promotion_was_compared_with_or_with_nothing(lab: Lab, model: str) -> None:
    first, second = Entrant(lab, model), Entrant(lab, model)
    first.promote(policy=COMPARES)
    second.promote(policy=COMPARES)
    same, absolute = second.verify(policy=COMPARES), second.verify(policy={"rules": {TRAJECTORY: {"min": 0.5}}})
    assert (same.verdict, same.baseline_run_id) == ("passed", first.run_id)
    assert (absolute.verdict, absolute.baseline_run_id) == ("passed", "")
    named = second.verify(policy=COMPARES | {"rules": {TRAJECTORY: {"min": 0.5}}})
    assert named.passed, "a baseline that no rule compares with is no matter"
    for baseline in ({"version": 1}, {"alias": "staging"}, {"alias": "champion", "model": "another"}):
        other = second.verify(policy=COMPARES | {"baseline": baseline})
        assert other.verdict == "undecided"
        assert "compared with another baseline (alias champion)" in " ".join(other.reasons)
    stricter = second.verify(policy={"name": "strict", "rules": {TRAJECTORY: {"max": 0.5}}})
    assert stricter.reasons[0] == f"version 2 of {model!r} does not meet the policy 'strict'"


def test_an_audit_looks_at_what_was_promoted_and_without_a_claim_log_at_every_alias(lab: Lab, model: str) -> None:
    first, second = Entrant(lab, model), Entrant(lab, model)
    first.set_by_hand("staging")
    first.set_by_hand("champion")
    assert [(each.alias, each.valid) for each in audit(model, tracking_uri=lab.uri)] == [("champion", False), ("staging", False)]
    assert not [each for each in audit(tracking_uri=lab.uri) if each.model == model], "nobody ever promoted it"
    first.promote()
    second.promote()
    (found,) = audit(model, tracking_uri=lab.uri)
    assert (found.alias, found.valid) == ("champion", True)
    first.set_by_hand()
    (found,) = audit(model, tracking_uri=lab.uri)
    assert found.reasons[0].startswith("it was moved by hand from version 2 (by a promotion to version 2, by ")
    assert found.reasons[0].endswith(") to version 1: its claim log does not contain that change")
    (unset,) = audit(model, "canary", tracking_uri=lab.uri)
    assert (unset.valid, unset.reasons) == (False, ("no version holds it, and according to its claim log none ever did",))
    with pytest.raises(UsageError, match="does not exist"):
        audit(f"{model}_nowhere", tracking_uri=lab.uri)


@pytest.mark.parametrize(
    "message",
    [
        '(psycopg2.errors.UniqueViolation) duplicate key value violates unique constraint "model_version_tag_pk"',
        "(sqlite3.IntegrityError) UNIQUE constraint failed: model_version_tags.key",
        "(pymysql.err.IntegrityError) (1062, \"Duplicate entry 'm-1-k' for key 'PRIMARY'\")",
    ],
)
def test_a_tag_that_two_write_at_once_is_written_again(lab: Lab, model: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entrant, store = Entrant(lab, model), MlflowStore(lab.uri)
    write, failures = (
        store.client.set_model_version_tag,
        [MlflowException(message, error_code=1)],
    )  # BAD_REQUEST's neighbour: an internal error

    def beside_another(*args: Any) -> None:
        write(*args)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(store.client, "set_model_version_tag", beside_another)
    assert promoted(store, entrant).passed
    assert not failures
    assert entrant.tags["adk_eval.gate"] == "passed"


def test_a_tag_that_mlflow_refuses_is_no_race(lab: Lab, model: str) -> None:
    entrant, store = Entrant(lab, model), MlflowStore(lab.uri)
    with pytest.raises(UsageError, match="does not exist"):
        store.tag(Target(name=model, version=entrant.version, alias="champion"), {"": "x"})


class Counted:
    """An MLflow client that counts what it is asked."""

    def __init__(self, client: Any) -> None:
        self._client, self.calls = client, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found
        self.calls[name] += 1
        return found


def test_how_often_a_promotion_asks_mlflow(lab: Lab, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these is a request on a server; MLflow's client adds one to each tag and alias, to see that the model is no prompt."""
    first, second = Entrant(lab, model), Entrant(lab, model)
    listings = Counter[str]()

    def counted(repository: ArtifactRepository, path: str | None = None) -> Any:
        listings[path or ""] += 1
        return list_artifacts(repository, path)

    list_artifacts = LocalArtifactRepository.list_artifacts
    monkeypatch.setattr(LocalArtifactRepository, "list_artifacts", counted)
    totals = list[int]()
    for entrant in (first, second):
        store = MlflowStore(lab.uri)
        store.client = Counted(store.client)
        listings.clear()
        assert promoted(store, entrant, COMPARES).passed
        calls = store.client.calls
        assert calls["list_artifacts"] == calls["download_artifacts"] == 0, "they look for the run and for its models each time"
        totals.append(sum(calls.values()))
        assert max(listings.values()) <= 8, listings
    assert totals[0] <= 51, "the first promotion, which makes the claim log"
    assert totals[1] <= 46, calls
