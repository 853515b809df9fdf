"""The claim log of an alias: what can be read from it, and that it exists once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.gating.mlflow_store import MlflowStore, claims_experiment
from mlflow_adk_eval.gating.promotion.claim_log import (
    Claim,
    ClaimLog,
    Confirmation,
    End,
    Entry,
    aliases_in,
    key_of,
    read_claim,
    read_claim_log,
    text_of,
)
from tests.gating.gate_kit import Lab

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def claim(version: str, previous: str | None = None, kind: str = "promotion", **values: object) -> Claim:
    found = {
        "id": f"id-{version}",
        "kind": kind,
        "version": version,
        "previous": previous,
        "record": "r p 0",
        "by": "me",
        "at": NOW.isoformat(),
    }
    read = read_claim(json.dumps(found | values))
    assert read is not None
    return read


def entry(number: int, version: str, state: str = "done", **values: object) -> Entry:
    made = claim(version, **values)  # type: ignore[arg-type]
    confirmed = None if state == "open" else Confirmation(id="other" if state == "cancelled" else made.id, at=NOW)
    end = End(outcome=state, at=NOW) if state in ("done", "refused", "lost") else None  # type: ignore[arg-type]
    return Entry(number=number, claim=made, confirmation=confirmed, end=end)


@pytest.mark.parametrize("state", ["open", "confirmed", "cancelled", "done", "refused", "lost"])
def test_an_entry_knows_how_far_it_got(state: str) -> None:
    found = entry(1, "4", state)
    assert found.state == state
    assert found.pending == (state in ("open", "confirmed"))
    assert found.set_on("4") == (state in ("done", "confirmed"))
    assert found.set_on("5") == (state == "done")


def test_what_a_parameter_holds_is_read_again() -> None:
    params = {
        "champion.0001": text_of(claim("1")),
        "champion.0001.go": text_of(Confirmation(id="id-1", at=NOW)),
        "champion.0001.end": text_of(End(outcome="done", at=NOW, reason="x" * 5000)),
        "champion.0002": "nonsense",
        "champion.0010": text_of(claim("2", "1")),
        "champion.10": text_of(claim("9")),
        "champion.00010": text_of(claim("9")),
        "staging.0001": text_of(claim("7")),
        "xchampion.0011": text_of(claim("8")),
    }
    found = read_claim_log(params, "champion")
    assert [(each.number, each.claim.version, each.state) for each in found.entries] == [(1, "1", "done"), (10, "2", "open")]
    assert found.next == 11
    assert found.invalid == ("champion.0002",)
    assert found.last is not None
    assert found.last.number == 10
    assert found.entry(2) is None
    assert all(len(text) < 6000 for text in params.values())
    assert aliases_in(params) == ["champion", "staging", "xchampion"]
    assert read_claim_log({}, "champion") == ClaimLog(alias="champion")


@given(st.text(alphabet="abc-_Ä", min_size=1, max_size=255), st.integers(1, 10**6))
def test_every_alias_has_keys_that_mlflow_takes(alias: str, number: int) -> None:
    key = key_of(alias, number, "end")
    assert len(key) <= 250
    assert read_claim_log({key_of(alias, number): text_of(claim("1"))}, alias).entries[0].number == number
    assert read_claim_log({key_of(alias, number): text_of(claim("1"))}, alias + "x").entries == ()


@pytest.mark.parametrize(("seconds", "waits"), [(0, True), (299, True), (301, False), (-299, True), (-301, False)])
def test_a_claim_is_waited_for_a_while(seconds: float, waits: bool) -> None:
    now = NOW + timedelta(seconds=seconds)
    for state in ("open", "confirmed"):
        said = ClaimLog(alias="champion", entries=(entry(1, "4", state),), next=2).in_progress(now, 300)
        assert bool(said) == waits
        if waits:
            assert said == (
                "the alias champion is being set: a promotion to version 4, by me at 2026-11-21T12:00:00+00:00 is in progress;"
                " if it has died, try again after 2026-11-21T12:05:00+00:00"
            )
    for state in ("done", "refused", "lost", "cancelled"):
        assert ClaimLog(alias="champion", entries=(entry(1, "4", state),), next=2).in_progress(now, 300) == ""


@pytest.mark.parametrize(
    ("moves", "held"),
    [
        ("1 2 3", "1 2 3"),
        ("1 1 2", "1 2"),
        ("1 2 3 <2", "1 2"),
        ("1 2 3 <2 <1", "1"),
        ("1 2 3 <1 4", "1 4"),
        ("1 2 3 <2 3 <2", "1 2"),
        ("1 2 1 <2", "1 2"),
        ("1 2 +2", "1 2"),
        ("1 2 <7", "1 2 7"),
        ("", ""),
    ],
)
def test_a_rollback_takes_off_what_it_goes_back_over(moves: str, held: str) -> None:
    kinds = {"<": "rollback", "+": "restore"}
    entries = [entry(number, move.lstrip("<+"), kind=kinds.get(move[0], "promotion")) for number, move in enumerate(moves.split(), start=1)]
    assert ClaimLog(alias="champion", entries=tuple(entries), next=9).former_holders(None) == held.split()


def test_only_what_was_carried_out_counts() -> None:
    entries = [
        entry(number, str(number), state) for number, state in enumerate(("done", "refused", "lost", "cancelled", "confirmed", "open"), 1)
    ]
    log = ClaimLog(alias="champion", entries=tuple(entries), next=7)
    assert log.former_holders(None) == ["1"]
    assert log.former_holders("5") == ["1", "5"]


def test_a_claim_can_be_made_once(lab: Lab, model: str) -> None:
    store = MlflowStore(lab.uri)
    assert store.claims(model) == {}
    assert store.claim(model, "champion.0001", "one") == "one"
    assert store.claim(model, "champion.0001", "two") == "one"
    assert store.claim(model, "champion.0001", "one") == "one"
    assert store.claims(model) == {"champion.0001": "one"}


def test_all_who_begin_a_claim_log_at_once_begin_the_same_one(lab: Lab, model: str) -> None:
    """Threads suffice here: what decides is the database."""
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: MlflowStore(lab.uri), range(8)))
        found = list(pool.map(lambda store: store.claim(model, "champion.0001", str(id(store))), stores))
    assert len(set(found)) == 1
    experiments = [each.name for each in lab.client.search_experiments() if each.name.startswith(f"adk_eval.gate/{model}")]
    assert experiments == [claims_experiment(model)]
    (run,) = lab.client.search_runs([lab.client.get_experiment_by_name(claims_experiment(model)).experiment_id])
    assert run.data.params == {"champion.0001": found[0]}
    assert run.info.status == "FINISHED"


@given(st.text(min_size=1, max_size=600), st.text(min_size=1, max_size=600))
def test_each_model_has_a_claim_log_of_its_own(one: str, other: str) -> None:
    assert (claims_experiment(one) == claims_experiment(other)) == (one == other)
    assert len(claims_experiment(one)) <= 500
