"""The claim log of an alias: what can be read from it, and that it exists once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.gating.promotion.claim_log import (
    Claim,
    ClaimLog,
    ClaimParams,
    Confirmation,
    End,
    Entry,
    State,
    aliases_in,
    key_of,
    read_claim_log,
    text_of,
)
from mlflow_adk_eval.gating.promotion.record import Kind
from mlflow_adk_eval.gating.registry import MlflowStore, claims_experiment
from mlflow_adk_eval.signing.keys import Signer, Verifier
from tests.gating.attestation.test_keys import signer_of_a_new_key
from tests.gating.gate_kit import Lab
from tests.gating.promotion.claim_kit import version_id

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def claim(version: str, previous: str | None = None, kind: Kind = "promotion", *, number: int = 1, **values: Any) -> Claim:
    found = {"id": f"id-{number}-{version}", "log": "run", "alias": "champion", "before": "", "record": "r p 0", "by": "me", "at": NOW}
    versions = {"version": version_id(version), "previous": previous and version_id(previous)}
    return Claim(**{**found, "number": number, "kind": kind, **versions, **values})


def entry(number: int, version: str, state: State = "done", **values: Any) -> Entry:
    made = claim(version, number=number, **values)
    confirmed = None if state == "open" else Confirmation(claim=made.id, cancelled=state == "cancelled", at=NOW)
    end = End(claim=made.id, outcome=state, at=NOW) if state in ("done", "refused", "lost") else None
    return Entry(claim=made, confirmation=confirmed, end=end)


def written(entries: Sequence[Entry], *, log: str = "run", signer: Signer | None = None) -> dict[str, str]:
    """Return the parameters that hold entries, each of which follows the one before."""
    params: dict[str, str] = {}
    for each in entries:
        head = read_claim_log(ClaimParams(log=log, params=params), "champion", signer.verifier if signer else None).head
        made = replace(each.claim, log=log, before=head)
        params[key_of("champion", each.number)] = text_of(made, signer)
        if each.confirmation:
            params[key_of("champion", each.number, "go", made.id)] = text_of(each.confirmation, signer)
        if each.end:
            params[key_of("champion", each.number, "end", made.id)] = text_of(each.end, signer)
    return params


@pytest.mark.parametrize("state", ["open", "confirmed", "cancelled", "done", "refused", "lost"])
def test_an_entry_knows_how_far_it_got(state: str) -> None:
    found = entry(1, "4", state)
    assert found.state == state
    assert found.pending == (state in ("open", "confirmed"))
    assert found.set_on(version_id("4")) == (state in ("done", "confirmed"))
    for another in (version_id("5"), version_id("4", model_created_ms=9), None):
        assert found.set_on(another) == (state == "done")
    assert found.carried_out(version_id("4"), version_id("4")) == (state == "confirmed")
    assert not found.carried_out(version_id("4"), version_id("4", model_created_ms=9))
    assert not found.carried_out(version_id("4", model_created_ms=9), version_id("4", model_created_ms=9))


def read(params: dict[str, str], *, log: str = "run", verifier: Verifier | None = None) -> ClaimLog:
    return read_claim_log(ClaimParams(log=log, params=params), "champion", verifier)


def test_what_a_parameter_holds_is_read_again() -> None:
    entries = [entry(1, "1"), entry(2, "2", previous="1"), entry(3, "3", "open", previous="2")]
    params = written(entries)
    found = read(params)
    assert [(each.number, each.claim.version.number, each.state) for each in found.entries] == [
        (1, "1", "done"),
        (2, "2", "done"),
        (3, "3", "open"),
    ]
    assert found.next == 4
    assert found.skipped == ()
    assert found.last == found.entry(3)
    assert found.entry(4) is None
    assert found.rightful_holder(version_id("9")) == version_id("2")
    assert aliases_in({**params, "staging.0001": "", "canary.0002": "", "x": ""}) == ["champion", "staging"]
    assert read({}, log="") == ClaimLog(alias="champion")
    long = text_of(End(claim="i", outcome="done", at=NOW, reason="x" * 50_000), SIGNER)
    assert len(long) < 6000


KEY_OF_END = key_of("champion", 3, "end", "id-3-3")


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("champion.0004", "nonsense", "champion.0004 in the claim log is not a claim"),
        ("champion.999999999", text_of(claim("9", number=999999999)), "champion.999999999 in the claim log belongs to no claim"),
        ("champion.9999999999", "x", "champion.9999999999 in the claim log belongs to no claim"),
        ("champion.4", "x", "champion.4 in the claim log belongs to no claim"),
        ("champion.0004.end", "x", "champion.0004.end in the claim log belongs to no claim"),
        ("champion.0003.end", "x", "champion.0003.end in the claim log belongs to no claim"),
        ("champion.0003.go.ffffffff", "x", "champion.0003.go.ffffffff in the claim log belongs to no claim"),
        (KEY_OF_END, "x", f"{KEY_OF_END} in the claim log is not the end of a claim"),
        (KEY_OF_END, text_of(End(claim="another", outcome="lost", at=NOW)), f"{KEY_OF_END} in the claim log belongs to another claim"),
        ("champion.0004", text_of(claim("9", number=4)), "champion.0004 in the claim log does not follow the previous claim"),
        ("champion.0004", text_of(claim("9", number=5)), "champion.0004 in the claim log was written for another place"),
        (
            "champion.0004",
            text_of(claim("9", number=4, log="other")),
            "champion.0004 in the claim log was written for another claim log (run other): this is a copy",
        ),
    ],
)
def test_what_is_no_part_of_the_claim_log_is_told_and_skipped(key: str, text: str, told: str) -> None:
    params = written([entry(1, "1"), entry(2, "2", previous="1"), entry(3, "3", "confirmed", previous="2")])
    before, found = read(params), read({**params, key: text})
    assert found.entries == before.entries
    assert found.skipped == (told,)
    assert found.next == (5 if key == "champion.0004" else 4)
    assert "champion" in aliases_in({**params, key: text})


def test_a_claim_with_a_spoilt_confirmation_counts_as_cancelled() -> None:
    params = written([entry(1, "1"), entry(2, "2", "open", previous="1")])
    found = read({**params, key_of("champion", 2, "go", "id-2-2"): "x"})
    assert found.last is not None
    assert found.last.state == "cancelled"
    assert found.skipped == ("champion.0002.go.id-2-2 in the claim log is not a confirmation",)


def test_a_copy_in_another_run_is_no_claim_log() -> None:
    params = written([entry(1, "1"), entry(2, "2", previous="1")])
    copy = read(params, log="copy")
    assert copy.entries == ()
    assert copy.skipped[0] == "champion.0001 in the claim log was written for another claim log (run run): this is a copy"


@given(cut=st.integers(1, 3))
def test_a_gap_is_seen(cut: int) -> None:
    params = written([entry(number, str(number)) for number in range(1, 5)])
    missing = {key: text for key, text in params.items() if not key.startswith(f"champion.{cut:04d}")}
    found = read(missing)
    assert [each.number for each in found.entries] == list(range(1, cut))
    assert any(key.startswith(f"champion.{cut + 1:04d} ") for key in found.skipped)


@given(at=st.integers(min_value=0), text=st.text(alphabet="0123456789abcdef", min_size=1, max_size=2))
def test_an_entry_that_was_rewritten_does_not_lead_to_the_next(at: int, text: str) -> None:
    """The database may be edited, too: whatever changes in an entry changes its hash, which the next one names and a checkpoint pins."""
    params = written([entry(1, "1"), entry(2, "2", previous="1")])
    key = sorted(key for key in params if key.startswith("champion.0001"))[at % 3]
    position = at % len(params[key])
    edited = params[key][:position] + text + params[key][position + len(text) :]
    found = read({**params, key: edited})
    assert edited == params[key] or not any(each.number == 2 for each in found.entries)


SIGNER = signer_of_a_new_key()


def test_with_a_key_only_what_is_signed_counts() -> None:
    signed = written([entry(1, "1"), entry(2, "2", previous="1")], signer=SIGNER)
    verifier = SIGNER.verifier
    assert len(read(signed, verifier=verifier).entries) == 2
    assert len(read(signed).entries) == 2
    assert read(signed, verifier=signer_of_a_new_key().verifier).entries == ()
    forged = text_of(claim("9", "2", number=3, before=read(signed, verifier=verifier).head))
    found = read({**signed, "champion.0003": forged}, verifier=verifier)
    assert len(found.entries) == 2
    assert found.skipped == ("champion.0003 in the claim log is not signed with the key",)
    assert found.next == 4
    key = key_of("champion", 2, "end", "id-2-2")
    lost = read({**signed, key: text_of(End(claim="id-2-2", outcome="lost", at=NOW))}, verifier=verifier)
    assert [each.state for each in lost.entries] == ["done", "confirmed"]


@pytest.mark.parametrize(("minutes", "dated_back"), [(-10, False), (0, False), (4, False), (5, False), (6, True)])
def test_where_keys_have_a_time_no_claim_is_dated_before_the_one_it_follows(minutes: int, dated_back: bool) -> None:
    signed = written([entry(1, "1"), entry(2, "2", previous="1", at=NOW - timedelta(minutes=minutes))], signer=SIGNER)
    limited = replace(SIGNER.verifier, until={SIGNER.verifier.key_ids[0]: datetime(2999, 1, 1, tzinfo=UTC)})
    found = read(signed, verifier=limited)
    assert [each.number for each in found.entries] == ([1] if dated_back else [1, 2])
    assert ("champion.0002 in the claim log has an earlier date than the previous claim" in found.skipped) == dated_back
    assert len(read(signed, verifier=SIGNER.verifier).entries) == 2, "a key without a time signs whenever it likes"
    assert len(read(signed).entries) == 2


@given(st.text(alphabet="abc-_Ä", min_size=1, max_size=255), st.integers(1, 10**6))
def test_every_alias_has_keys_that_mlflow_takes(alias: str, number: int) -> None:
    assert len(key_of(alias, number, "end", "0d1f9a2be27c4c5b")) <= 250
    params = {key_of(alias, 1): text_of(claim("1", alias=alias))}
    assert read_claim_log(ClaimParams(log="run", params=params), alias).entries[0].number == 1
    assert read_claim_log(ClaimParams(log="run", params=params), alias + "x").entries == ()


@pytest.mark.parametrize(("seconds", "waits"), [(0, True), (299, True), (301, False), (-299, True), (-301, False)])
def test_a_claim_is_waited_for_a_while(seconds: float, waits: bool) -> None:
    now = NOW + timedelta(seconds=seconds)
    for state in ("open", "confirmed"):
        said = ClaimLog(alias="champion", entries=(entry(1, "4", state),), next=2).in_progress(now, 300)
        assert bool(said) == waits
        if waits:
            assert said == (
                "the alias champion is being set: a promotion to version 4, by me at 2026-11-21T12:00:00+00:00 is in progress;"
                " if that process died, try again after 2026-11-21T12:05:00+00:00"
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
    assert ClaimLog(alias="champion", entries=tuple(entries), next=9).former_holders(None) == [version_id(each) for each in held.split()]


def test_only_what_was_carried_out_counts() -> None:
    entries = [
        entry(number, str(number), state) for number, state in enumerate(("done", "refused", "lost", "cancelled", "confirmed", "open"), 1)
    ]
    log = ClaimLog(alias="champion", entries=tuple(entries), next=7)
    assert log.former_holders(None) == [version_id("1")]
    assert log.former_holders(version_id("5")) == [version_id("1"), version_id("5")]
    assert log.former_holders(version_id("5", model_created_ms=9)) == [version_id("1")]


def test_a_claim_can_be_made_once(lab: Lab, model: str) -> None:
    store = MlflowStore(lab.uri)
    assert store.claims(model) == ClaimParams(params={})
    assert store.claim(model, "champion.0001", "one") == "one"
    assert store.claim(model, "champion.0001", "two") == "one"
    assert store.claim(model, "champion.0001", "one") == "one"
    assert store.claims(model).params == {"champion.0001": "one"}


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
    told = lab.client.get_experiment(run.info.experiment_id).tags["mlflow.note.content"]
    assert f"[who set each alias](#/experiments/{run.info.experiment_id}/runs/{run.info.run_id})" in told


@pytest.mark.parametrize("asked", ["get_experiment_by_name", "get_registered_model", "search_experiments", "search_model_versions"])
def test_a_claim_log_that_somebody_begins_meanwhile_is_not_taken_for_one_that_was_hidden(
    lab: Lab, model: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody promotes right after the first answer of a kind."""
    store, other, answers = MlflowStore(lab.uri), MlflowStore(lab.uri), list[object]()
    lab.client.create_registered_model(model)
    version = lab.client.create_model_version(model, "s3://bucket/agent").version
    answer = getattr(store.client, asked)

    def then_somebody_promotes(*args: Any, **options: Any) -> Any:
        found = answer(*args, **options)
        if not answers:
            other.claim(model, "champion.0001", "theirs")
            lab.client.set_model_version_tag(model, version, "mlflow.adk_eval.gate.passed.champion", "runs:/1/record.json")
        answers.append(found)
        return found

    monkeypatch.setattr(store.client, asked, then_somebody_promotes)
    store.claims(model)
    assert answers
    assert store.claims(model).params == {"champion.0001": "theirs"}


@given(st.text(min_size=1, max_size=600), st.text(min_size=1, max_size=600))
def test_each_model_has_a_claim_log_of_its_own(one: str, other: str) -> None:
    assert (claims_experiment(one) == claims_experiment(other)) == (one == other)
    assert len(claims_experiment(one)) <= 500
