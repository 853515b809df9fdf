"""Attack 18: a clock that is wrong by days, so that a waiver that expired holds again, or a run or calibration is as young as it has to be.

Where there is a server its clock counts. On a database MLflow's own code runs here, and the store's clock is given instead.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import TrackingError
from mlflow_adk_eval.gating.api import decided, verify
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target
from mlflow_adk_eval.gating.registry import MlflowStore, store_at
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.store.reaching import clock_of, reaching_mlflow
from tests.analysis.calibrated import MATCH, evaluated
from tests.gating.attacks.test_11_calibration import LABELS, ONE
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import TRAJECTORY, Lab
from tests.gating.promotion.claim_kit import forge_claim
from tests.servers.proxy import Proxy, Request

RULES = {TRAJECTORY: {"min": 0.9, "use": "mean"}}
YOUNG = {"rules": RULES, "max_age": "7d"}
DAYS = timedelta(days=30)


def waived_until(day: datetime) -> dict[str, Any]:
    """Return a policy that the bad entrant meets while its waiver holds."""
    return {"rules": RULES, "waivers": [{"case": "heating", "owner": "a", "reason": "b", "expires": f"{day:%Y-%m-%d}"}]}


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Have the clock of this machine go wrong, as every module of the gate reads it."""

    def go_wrong(by: timedelta) -> None:
        class Wrong(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + by

        for name, module in list(sys.modules.items()):
            if name.startswith("mlflow_adk_eval.gating") and getattr(module, "datetime", None) is datetime:
                monkeypatch.setattr(module, "datetime", Wrong)

    return go_wrong


@pytest.fixture(scope="module")
def proxy(served_lab: Lab) -> Iterator[Proxy]:
    made = Proxy(served_lab.uri).start()
    yield made
    made.stop()


@pytest.mark.parametrize("by", [DAYS, -DAYS], ids=["ahead", "behind"])
def test_the_clock_of_a_store_decides_about_ages_and_waivers(by: timedelta, lab: Lab, model: str) -> None:
    """Quick: on SQLite the clock is given to the store; `gate`, `promote` and `verify` have no other one."""
    good, bad = Entrant(lab, model), Entrant(lab, model, good=False)
    store = MlflowStore(lab.uri)
    there = now() + by
    store.clock = lambda: there

    def gated(entrant: Entrant, policy: dict[str, Any]) -> str:
        search = BaselineSearch(store=store, policy=load_policy(policy))
        decision = decided(examine(store.evidence(entrant.run_id)), search)
        assert datetime.fromisoformat(decision.decided_at) == there
        return decision.verdict

    def promoted(entrant: Entrant, policy: dict[str, Any]) -> str:
        target = Target(name=model, version=entrant.version, alias="champion")
        decision = promote_in(store, target, entrant.run_id, load_policy(policy))
        assert datetime.fromisoformat(decision.decided_at) == there
        return decision.verdict

    for decide in (gated, promoted):
        assert decide(good, YOUNG) == "undecided", "its end is 30 days ago, or 30 days ahead"
        assert decide(bad, waived_until(there - timedelta(days=2))) == "failed"
        assert decide(bad, waived_until(there + timedelta(days=2))) == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("by", [DAYS, -DAYS], ids=["ahead", "behind"])
def test_a_wrong_clock_of_this_machine_changes_nothing(by: timedelta, served_lab: Lab, model: str, at: Callable[[timedelta], None]) -> None:
    good, bad, uri = Entrant(served_lab, model), Entrant(served_lab, model, good=False), served_lab.uri
    at(by)
    expired, holds = waived_until(now() - timedelta(days=2)), waived_until(now() + timedelta(days=2))
    assert good.promote(policy=YOUNG).passed
    assert bad.promote(policy=expired, raise_on_failure=False).verdict == "failed"
    assert adk_eval.gate(bad.run_id, expired, tracking_uri=uri, raise_on_failure=False).verdict == "failed"
    decision = adk_eval.gate(bad.run_id, holds, tracking_uri=uri)
    assert decision.passed
    verified = verify(model, alias="champion", policy=YOUNG, tracking_uri=uri)
    assert verified.passed
    for found in (decision, verified):
        assert abs(datetime.fromisoformat(found.decided_at) - now()) < timedelta(minutes=1)
    claim = MlflowStore(uri).claim_log(model, "champion").entries[0].claim
    assert abs(claim.at - now()) < timedelta(minutes=1)
    record = good.record.path
    assert f"{now():%Y%m%dT}" in record or f"{now() - timedelta(minutes=1):%Y%m%dT}" in record


@pytest.mark.slow
def test_the_clock_of_the_server_counts(served_lab: Lab, proxy: Proxy, model: str) -> None:
    good, bad = Entrant(served_lab, model), Entrant(served_lab, model, good=False)
    held = waived_until(now() + timedelta(days=2))
    assert adk_eval.gate(bad.run_id, held, tracking_uri=proxy.uri).passed
    proxy.ahead = DAYS
    try:
        assert adk_eval.gate(bad.run_id, held, tracking_uri=proxy.uri, raise_on_failure=False).verdict == "failed"
        old = adk_eval.gate(good.run_id, YOUNG, tracking_uri=proxy.uri, raise_on_failure=False)
        assert (old.verdict, datetime.fromisoformat(old.decided_at).date()) == ("undecided", (now() + DAYS).date())
        assert good.promote(policy=YOUNG, raise_on_failure=False).passed, "without the proxy the time is another one"
    finally:
        proxy.ahead = timedelta()


@pytest.mark.slow
def test_a_calibration_is_as_old_as_the_server_says(
    served_lab: Lab, monkeypatch: pytest.MonkeyPatch, at: Callable[[timedelta], None], proxy: Proxy
) -> None:
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
    run = evaluated(served_lab.uri, ONE)
    calibration = adk_eval.calibrate(run, LABELS, tracking_uri=served_lab.uri).model_dump(mode="json", exclude_none=True)
    waived = [{"case": "down", "owner": "a", "reason": "b", "expires": "2999-01-01"}]
    policy = {"rules": {MATCH: {"min": 0.1}}, "waivers": waived, "judge": {"calibrated": True, "max_age": "7d"}, "calibration": calibration}
    for by in (DAYS, -DAYS):
        at(by)
        decision = adk_eval.gate(run, policy, tracking_uri=served_lab.uri, raise_on_failure=False)
        assert decision.passed, decision.reasons
    at(timedelta())
    proxy.ahead = DAYS
    try:
        assert adk_eval.gate(run, policy, tracking_uri=proxy.uri, raise_on_failure=False).verdict == "undecided"
    finally:
        proxy.ahead = timedelta()


def changes_nothing(request: Request) -> bool:
    return request.method == "GET" or request.path.endswith("/search")


@pytest.mark.slow
def test_a_gate_and_a_dry_run_send_only_questions(served_lab: Lab, proxy: Proxy, model: str) -> None:
    champion, good = Entrant(served_lab, model), Entrant(served_lab, model)
    policy = {"rules": {TRAJECTORY: {"min": 0.5, "max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}
    how: dict[str, Any] = {"run_id": good.run_id, "policy": policy, "tracking_uri": proxy.uri, "raise_on_failure": False}
    with proxy.spoiling(lambda _: None) as seen:
        adk_eval.promote(model, good.version, dry_run=True, **how)  # there is no claim log yet
        champion.promote()
        adk_eval.promote(model, good.version, dry_run=True, **how)
        forge_claim(MlflowStore(served_lab.uri), model, None, version=champion.version, previous="1")  # somebody is at work
        with pytest.raises(adk_eval.errors.AliasBusyError, match="is in progress"):
            adk_eval.promote(model, good.version, dry_run=True, wait_s=0, **how)
        adk_eval.gate(good.run_id, policy, model=model, tracking_uri=proxy.uri, raise_on_failure=False)
        verify(model, alias="champion", tracking_uri=proxy.uri)
        adk_eval.audit(model, tracking_uri=proxy.uri)
    assert seen
    assert [each for each in seen if not changes_nothing(each)] == []


def test_a_dry_run_beside_somebody_at_work_writes_nothing(lab: Lab, model: str) -> None:
    class ReadOnly(MlflowStore):
        def now(self, name: str) -> datetime:
            raise AssertionError("it renames an experiment")

        def claim(self, name: str, key: str, text: str) -> str:
            raise AssertionError("it writes a claim")

    champion, good = Entrant(lab, model), Entrant(lab, model)
    champion.promote()
    forge_claim(MlflowStore(lab.uri), model, None, version=champion.version, previous="1")
    target = Target(name=model, version=good.version, alias="champion")
    with pytest.raises(adk_eval.errors.AliasBusyError, match="is in progress"):
        promote_in(ReadOnly(lab.uri), target, good.run_id, load_policy({"rules": RULES}), dry_run=True)


@pytest.mark.parametrize(("headers", "ahead"), [(True, DAYS), (True, -DAYS), (False, timedelta())])
def test_a_server_is_asked_for_the_time_once(headers: bool, ahead: timedelta) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response_only(200)
            if headers:
                self.send_header("Date", self.date_time_string((now() + ahead).timestamp()))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        clock = clock_of(f"http://127.0.0.1:{server.server_port}/mlflow")
        if not headers:
            with (
                pytest.raises(TrackingError, match="the server's answer has no Date header"),
                reaching_mlflow("MLflow could not be queried"),
            ):
                clock()
            return
        first, second = clock(), clock()
        assert first < second
        assert abs(first - (now() + ahead)) < timedelta(minutes=1)
        assert asked == ["/mlflow/version"]
    finally:
        server.shutdown()
        server.server_close()


def test_a_store_on_a_database_has_the_clock_of_this_machine(lab: Lab) -> None:
    with store_at(f"sqlite:///{lab.folder / 'mlflow.db'}") as store:
        assert abs(store.clock() - now()) < timedelta(minutes=1)
