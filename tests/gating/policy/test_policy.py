"""Policies: strictly read, the same in YAML and JSON, and never more than they seem."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from mlflow_adk_eval.analysis.calibration.calibration import load_calibration
from mlflow_adk_eval.cli.files import validate_file
from mlflow_adk_eval.config.spec import MEASURES, MEASURES_OF_A_CRITERION
from mlflow_adk_eval.errors import InputError, PolicyError
from mlflow_adk_eval.gating.policy.load import load_policy, parse_policy, policy_schema
from mlflow_adk_eval.gating.policy.model import (
    DEFAULT_POLICY,
    Attempts,
    AttestationPin,
    BaselineSource,
    ConfigPin,
    EvalSetPin,
    Holdout,
    JudgePin,
    Policy,
    ReplayPin,
    Rule,
    Slice,
    Waiver,
)
from tests.gating.policy_kit import calibration_of

DOCS = Path(__file__).parents[3] / "docs"
RULES = {"rules": {"response_match_score": {"min": 0.8}}}
PUBLIC = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n-----END PUBLIC KEY-----"
WHO = {"identity": "me", "issuer": "https://ci"}
FULL: dict[str, Any] = {
    "name": "release",
    "eval_set": {"id": "home", "digest": "sha256:" + "a" * 64},
    "judge": {"models": ["gemini-2.5-flash"]},
    "min_cases": 30,
    "max_age": "7d",
    "confidence": 0.9,
    "rules": {
        "response_match_score": {"min": 0.8, "max_drop": 0.02, "confidence": 0.95},
        "hallucinations_v1": {"min": 0.9, "use": "ci_low"},
        "cost": {"max": 0.02},
    },
    "slices": {"refunds": {"ids": ["refund_*"], "tags": ["money"], "min_cases": 5, "rules": {"case_pass_rate": {"min": 1}}}},
    "must_pass": ["refund_1"],
    "waivers": [{"case": "film", "owner": "Ada", "reason": "ticket 7", "expires": "2027-01-31"}],
    "baseline": {"alias": "champion"},
    "prices": {"gemini-2.5-flash": {"input": 0.3, "output": 2.5}, "agent": {"tokens": 1}},
}


def yaml_of(value: Any, path: Path) -> Path:
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(value, file)
    return path


def refused(value: Any) -> list[str]:
    with pytest.raises(PolicyError) as found:
        parse_policy(value, "gate.yaml")
    return [str(problem) for problem in found.value.problems]


def test_no_policy_is_the_default_one() -> None:
    assert load_policy(None) is DEFAULT_POLICY
    assert load_policy(DEFAULT_POLICY) is DEFAULT_POLICY


def test_yaml_json_and_a_dict_are_one_policy_with_one_digest(tmp_path: Path) -> None:
    in_json = tmp_path / "gate.json"
    in_json.write_text(json.dumps(FULL))
    in_yaml = yaml_of({**FULL, "waivers": [{**FULL["waivers"][0], "expires": date(2027, 1, 31)}]}, tmp_path / "gate.yaml")
    found = [load_policy(in_json), load_policy(str(in_yaml)), load_policy(FULL)]
    assert found[0] == found[1] == found[2]
    assert len({policy.digest() for policy in found}) == 1
    assert found[0].max_age == timedelta(days=7)
    assert str(found[0].waivers[0]) == "case 'film': waived by Ada until 2027-01-31: ticket 7"


def test_both_spellings_are_read() -> None:
    assert parse_policy({"mustPass": ["a"], "minCases": 2}, "p") == parse_policy({"must_pass": ["a"], "min_cases": 2}, "p")


numbers = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False) | st.integers(-100, 100)
names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp", "Cn"]), min_size=1, max_size=8)
rules = st.dictionaries(
    names, numbers.map(lambda bound: {"min": bound}) | numbers.map(lambda bound: {"max": bound}), min_size=1, max_size=4
)
confidences = st.floats(0.5, 1, exclude_min=True, exclude_max=True)
policies = st.builds(
    lambda rules, must_pass, min_cases, confidence: {
        "rules": rules,
        "must_pass": must_pass,
        "min_cases": min_cases,
        "confidence": confidence,
    },
    rules.filter(lambda found: "cost" not in found),
    st.lists(names, max_size=3, unique=True),
    st.integers(1, 10**6),
    confidences,
)


@given(policies)
def test_a_policy_survives_json_and_yaml_with_its_digest(value: dict[str, Any]) -> None:
    policy = parse_policy(value, "policy")
    again = parse_policy(json.loads(json.dumps(policy.to_json())), "policy")
    assert again == policy
    assert again.digest() == policy.digest()
    assert parse_policy(policy.to_json(), "policy").to_json() == policy.to_json()


@given(policies, policies)
def test_two_policies_have_one_digest_only_if_they_demand_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = parse_policy(one, "policy"), parse_policy(other, "policy")
    assert (first.digest() == second.digest()) == (first == second)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({**RULES, "min_case": 3}, "$.min_case: found an unknown key; wanted a known key of this object. Did you mean 'min_cases'?"),
        (
            {"rules": {"x": {"min": 1, "usee": "mean"}}},
            "$.rules.x.usee: found an unknown key; wanted one of min, max, use, max_drop, confidence, min_cases, judge, range. Did you mean 'use'?",
        ),
        ({"rules": {"x": {"min": "0.8"}}}, "$.rules.x.min: found '0.8'; wanted a number"),
        ({"rules": {"x": {"min": True}}}, "$.rules.x.min: found true; wanted a number"),
        ({"rules": {"x": {"min": math.nan}}}, "$.rules.x.min: found NaN; wanted a finite number"),
        ({"rules": {"x": {"max": math.inf}}}, "$.rules.x.max: found Infinity; wanted a finite number"),
        ({"rules": {"x": {}}}, "$.rules.x: found a rule that demands nothing; wanted at least one of min, max and max_drop"),
        ({"rules": {"x": {"min": 2, "max": 1}}}, "$.rules.x: found min 2 above max 1; wanted a min that is not above max"),
        ({"rules": {"x": {"max_drop": -0.1}}, "baseline": {"alias": "c"}}, "$.rules.x.max_drop: found -0.1; wanted a number of at least 0.0"),
        ({"rules": {"x": {"max_drop": 0.1}}}, "$: found max_drop without a baseline; wanted a baseline, such as {alias: champion}"),
        (
            {"rules": {"x": {"max": 1, "use": "ci_low"}}},
            "$.rules.x: found use ci_low without min, or with max; wanted ci_high for a max, and a separate rule for each bound of a range",
        ),
        ({"rules": {"x": {"min": 1, "use": "median"}}}, "$.rules.x.use: found 'median'; wanted one of 'mean', 'ci_low', 'ci_high', 'corrected_ci_low' or 'ppi_ci_low'"),
        (
            {"rules": {"x": {"min": 1, "use": "corrected_ci_low"}}},
            "$: found corrected_ci_low without a calibration; wanted calibration: the file that `mlflow-adk-eval calibrate` wrote",
        ),
        ({"rules": {"x": {"min": 1, "confidence": 95}}}, "$.rules.x.confidence: found 95; wanted a number below 1.0"),
        ({**RULES, "confidence": 0.5}, "$.confidence: found 0.5; wanted a number above 0.5"),
        ({**RULES, "min_cases": 0}, "$.min_cases: found 0; wanted a number of at least 1"),
        ({**RULES, "min_cases": 2.0}, "$.min_cases: found 2.0; wanted a whole number"),
        ({**RULES, "max_age": 7}, "$.max_age: found 7; wanted an age such as 12h, 7d or 2w"),
        ({**RULES, "max_age": "0d"}, "$.max_age: found '0d'; wanted an age such as 12h, 7d or 2w"),
        ({**RULES, "max_age": "9" * 30 + "w"}, f"$.max_age: found {'9' * 30 + 'w'!r}; wanted an age such as 12h, 7d or 2w"),
        ({**RULES, "max_age": timedelta(seconds=90)}, "$.max_age: found 0:01:30; wanted an age of whole minutes"),
        ({**RULES, "eval_set": {}}, "$.eval_set: found neither id nor digest; wanted at least one of id and digest"),
        ({**RULES, "eval_set": {"digest": "abc"}}, "$.eval_set.digest: found 'abc'; wanted a string that matches ^sha256:[0-9a-f]{64}$"),
        ({**RULES, "judge": {"models": []}}, "$.judge.models: found a list of 0; wanted at least 1 of them"),
        ({"slices": {"s": {"rules": RULES["rules"]}}}, "$.slices.s: found neither ids nor tags; wanted which cases the slice holds"),
        ({"slices": {"s": {"ids": ["a"], "rules": {}}}}, "$.slices.s.rules: found an object with no keys; wanted at least 1 of them"),
        ({"slices": {"s": {"ids": ["a", "a"], **RULES}}}, "$.slices.s: found 'a' twice; wanted each pattern once"),
        ({"must_pass": ["a", "b", "a"]}, "$: found 'a' twice; wanted each case of must_pass once"),
        ({"must_pass": [" "]}, "$.must_pass[0]: found ' '; wanted a non-empty string"),
        ({**RULES, "waivers": [{"case": "a", "owner": "b", "reason": "c"}]}, "$.waivers[0].expires: found nothing; wanted this required field"),
        (
            {**RULES, "waivers": [{"case": "a", "owner": "b", "reason": "c", "expires": "soon"}]},
            "$.waivers[0].expires: found soon; wanted a day such as 2027-01-31",
        ),
        (
            {**RULES, "waivers": [{"case": "a", "owner": "b", "reason": "c", "expires": 20270131}]},
            "$.waivers[0].expires: found 20270131; wanted a day such as 2027-01-31",
        ),
        ({**RULES, "waivers": [{"case": "a", "owner": "b", "reason": "c", "expires": "2027-01-31"}] * 2}, "$: found 'a' twice; wanted each waiver once"),
        ({**RULES, "baseline": {}}, "$.baseline: found none of them; wanted exactly one of alias, version and run"),
        ({**RULES, "baseline": {"alias": "c", "version": 3}}, "$.baseline: found alias and version; wanted exactly one of alias, version and run"),
        ({"rules": {"cost": {"max": 1}}}, "$: found a rule on cost without prices; wanted prices, by judge model and `agent`"),
        ({**RULES, "prices": {"m": {"input": 1}}}, "$.prices.m: found input; wanted either input and output, or tokens"),
        ({**RULES, "prices": {"m": {"tokens": -1}}}, "$.prices.m.tokens: found -1; wanted a number of at least 0.0"),
        (
            {**RULES, "prices": {"agent": {"input": 1, "output": 2}}},
            "$: found a price of the agent by input and output; wanted prices.agent.tokens: only the sum of the agent's tokens is known",
        ),
        ({**RULES, "attestation": {"keys": [PUBLIC, PUBLIC]}}, f"$.attestation: found {PUBLIC!r} twice; wanted each key once"),
        ({**RULES, "attestation": {"keys": [PUBLIC, 3]}}, "$.attestation.keys[1]: found 3; wanted a string"),
        ({**RULES, "attestation": {"keys": "key.pem"}}, "$.attestation.keys: found 'key.pem'; wanted a list"),
        ({**RULES, "prices": {"m": {"output": 1}}}, "$.prices.m: found output; wanted either input and output, or tokens"),
        ({**RULES, "prices": {"m": {"input": 1, "output": 1, "tokens": 1}}}, "$.prices.m: found input and output and tokens; wanted either input and output, or tokens"),
        ({**RULES, "prices": {"m": {}}}, "$.prices.m: found no price; wanted either input and output, or tokens"),
        ({**RULES, "attestation": {"identities": [WHO, WHO]}}, "$.attestation: found 'me of https://ci' twice; wanted each identity once"),
        ({"slices": {"s": {"tags": ["a", "a"], **RULES}}}, "$.slices.s: found 'a' twice; wanted each tag once"),
        ({}, "$: found a policy that demands nothing; wanted rules, slices, must_pass or thresholds: true"),
        ([RULES], "$: found a list of 1; wanted an object with rules"),
        ({"rules": {1: {"min": 1}}}, "$.rules[1]: found 1; wanted a string"),
        ({**RULES, "judge": {}}, "$.judge: found a demand on judges that demands nothing; wanted models, fresh: true, max_reused, max_drift, max_apart or calibrated: true"),
        ({**RULES, "judge": {"min_kapa": 0.6}}, "$.judge.min_kapa: found an unknown key; wanted a known key of this object. Did you mean 'min_kappa'?"),
        ({**RULES, "judge": {"calibrated": False, "labels": 5}}, "$.judge: found calibrated: false with other demands on the calibration; wanted calibrated: true, or none of them"),
    ],
)  # fmt: skip
def test_what_a_policy_does_not_say_clearly_is_refused(value: Any, problem: str) -> None:
    assert problem in refused(value)


def test_all_problems_are_named_at_once() -> None:
    assert len(refused({"rules": {"a": {"min": "x"}, "b": {"maxx": 1}}, "min_cases": 0, "name": ""})) >= 4


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{after}: &{after} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n" for before, after in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rules: [", "text that is not YAML (expected the node content, but found '<stream end>', line 1, column 9)"),
        ("rules: !!python/object/apply:os.system ['true']", "text that is not YAML (could not determine a constructor for the tag"),
        ("rules: {a: {min: 1}}\nrules: {b: {min: 1}}", 'text that is not YAML (found duplicate key "rules"'),
        ("rules: {a: {min: 1}}\n---\nrules: {}", "text that is not YAML (but found another document"),
        (BOMB, "more than 20,000 values or 50 levels"),
        (MERGES, "more than 20,000 values or 50 levels"),
        ("rules: " + "[" * 3000, "more than 20,000 values or 50 levels"),
        ("rules: &r [*r]", "an alias *r that contains itself"),
        ("rules: {a: {min: *nobody}}", "text that is not YAML (found undefined alias 'nobody'"),
        ("rules: {a: {min: 1}}\x00", "text that is not YAML ("),
        ("", "null"),
    ],
)
def test_yaml_that_is_no_plain_document_is_refused_at_once(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError) as refusal:
        load_policy(path)
    assert refusal.value.problems[0].found.startswith(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"rules": {}, "rules": {}}', "text that is not JSON (the key 'rules' is repeated in one object)"),
        ("rules: {a: {min: 1}}", "text that is not JSON (Expecting value"),
        ("", "an empty text"),
        ("[" * 100_000, "lists and objects nested too deeply"),
        (" " * 300_000, "300,000 bytes"),
    ],
)
def test_json_is_read_as_strictly(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "gate.json"
    path.write_text(text)
    with pytest.raises(PolicyError) as refusal:
        load_policy(path)
    assert refusal.value.problems[0].found.startswith(found)


def test_aliases_that_save_writing_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "gate.yml"
    path.write_text("rules: {a: &strict {min: 0.9}, b: *strict}\n")
    assert load_policy(path).rules == {"a": Rule(min=0.9), "b": Rule(min=0.9)}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such file"):
        load_policy(tmp_path / "gate.yaml")


def test_a_calibration_lies_beside_the_policy_and_becomes_a_part_of_it(tmp_path: Path, calibration: dict[str, Any]) -> None:
    (tmp_path / "labels.json").write_text(json.dumps(calibration))
    demanded = {"rules": {"hallucinations_v1": {"min": 0.8, "use": "corrected_ci_low"}}}
    by_path = load_policy(yaml_of({**demanded, "calibration": "labels.json"}, tmp_path / "gate.yaml"))
    assert by_path.digest() == load_policy({**demanded, "calibration": calibration}).digest()
    assert load_calibration(by_path.calibration or {}) == load_calibration(calibration)
    with pytest.raises(InputError, match="calibration"):
        load_policy({**demanded, "calibration": {"schema": 99}})


@pytest.fixture
def calibration() -> dict[str, Any]:
    return calibration_of("hallucinations_v1", {"criteria": {"hallucinations_v1": 0.8}}, (40, 5, 20, 2))


def test_waivers_hold_through_their_last_day_in_utc() -> None:
    waiver = Waiver(case="a", owner="b", reason="c", expires=date(2027, 1, 31))
    policy = Policy(thresholds=True, waivers=(waiver,))
    assert policy.waivers_on(datetime(2027, 1, 31, 23, 59, tzinfo=UTC)) == ((waiver,), ())
    assert policy.waivers_on(datetime(2027, 2, 1, 0, 0, tzinfo=UTC)) == ((), (waiver,))


def test_the_published_schema_is_that_of_the_model() -> None:
    published = json.loads((DOCS / "gate.schema.json").read_text())
    assert published == policy_schema(), "run make generated"


def test_the_schema_takes_the_policy_that_the_documentation_shows() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="comes with LiteLLM")
    validator = jsonschema.Draft202012Validator(policy_schema())
    assert list(validator.iter_errors(FULL)) == []
    assert [error.json_path for error in validator.iter_errors({**FULL, "min_case": 1})] == ["$"]


def test_the_policy_in_the_documentation_is_one(tmp_path: Path) -> None:
    shown, *_ = re.findall(r"```yaml\n(.*?)```", (DOCS / "reference" / "policy.md").read_text(), re.DOTALL)
    path = tmp_path / "gate.yaml"
    path.write_text(shown)
    policy = load_policy(path)
    assert len(policy.all_rules()) == 8
    left_out = set(type(policy).model_fields) - set(policy.to_json())
    assert left_out == {"attestation", "calibration"}, (  # these name files
        "show a new key in the example of docs/reference/policy.md, and name it in the table there"
    )


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## Keys", Policy),
        ("### `rules`", Rule),
        ("### `slices`", Slice),
        ("### `attempts`", Attempts),
        ("### `holdout`", Holdout),
        ("### `eval_set`", EvalSetPin),
        ("### `config`", ConfigPin),
        ("### `judge`", JudgePin),
        ("### `replay`", ReplayPin),
        ("### `attestation`", AttestationPin),
        ("### `baseline`", BaselineSource),
        ("### `waivers`", Waiver),
    ],
)
def test_every_key_is_in_the_documentation_with_its_default(heading: str, model: type[BaseModel]) -> None:
    section = (DOCS / "reference" / "policy.md").read_text().partition(f"\n{heading}\n")[2].partition("\n##")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|,]+(?:, ([^|]+))? \|", section, re.MULTILINE))

    def default(field: FieldInfo) -> str:
        if field.is_required():
            return "required"
        value = field.get_default(call_default_factory=True, validated_data={})
        return "" if value is None else f"`{json.dumps(value)}`"

    assert rows == {name: default(field) for name, field in model.model_fields.items()}


def test_every_measure_is_in_the_documentation() -> None:
    page = (DOCS / "reference" / "policy.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in (*MEASURES, *(f"<criterion>/{suffix}" for suffix in MEASURES_OF_A_CRITERION), "pass^3"):
        assert any(f"`{name}`" in row.split("|")[1] for row in rows), f"give the measure {name} a row in docs/reference/policy.md"


def test_validate_tells_what_a_policy_demands(tmp_path: Path) -> None:
    found = validate_file(yaml_of({**FULL, "thresholds": True}, tmp_path / "gate.yaml"))
    assert found["kind"] == "gate policy"
    assert found["summary"].startswith(
        "'release' with every threshold in the run's config, 4 rules, 1 case that must pass, 1 waiver; sha256 "
    )
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(RULES))
    assert validate_file(path)["summary"].startswith("'policy' with 1 rule; sha256 ")
    path.write_text(json.dumps({"rules": {}, "must_pass": []}))
    with pytest.raises(PolicyError, match="demands nothing"):
        validate_file(path)


def test_all_that_is_wrong_with_a_policy_is_said_at_once(tmp_path: Path) -> None:
    value = {
        "rules": {
            "response_match_score": {"min": 0, "max_drop": 2},
            "tool_trajectory_avg_score": {"min": 2, "max": 1, "use": "ci_low"},
            "cost": {"mxa": 1},
        },
        "slices": {"x": {"rules": {"case_pass_rate": {"max": 80}}}},
        "must_pass": ["a", "b", "a", "b"],
        "config": {"criteria": {"safety_v1": 7}},
        "judge": {"max_age": 5, "fresh": True, "max_reused": 0.5, "calibrated": False, "labels": 3},
        "baselin": {"alias": "champion"},
        "calibration": "none.json",
        "attestation": {"keys": ["none.pem", "other.pem"], "source": "required", "sorce": 1},
    }
    assert {problem.partition(" wanted")[0] for problem in refused_file(value, tmp_path)} == {
        "$.baselin: found an unknown key;",
        "$.attestation.sorce: found an unknown key;",
        "$.attestation.keys[0]: found 'none.pem';",
        "$.attestation.keys[1]: found 'other.pem';",
        "$.rules.cost.mxa: found an unknown key;",
        "$.rules.tool_trajectory_avg_score: found min 2 above max 1;",
        "$.rules.tool_trajectory_avg_score: found use ci_low without min, or with max;",
        "$.rules.response_match_score.min: found 0;",
        "$.rules.response_match_score.max_drop: found 2;",
        "$.slices.x: found neither ids nor tags;",
        "$.slices.x.rules.case_pass_rate.max: found 80;",
        "$.config.criteria.safety_v1: found 7;",
        "$.judge.max_age: found 5;",
        "$: found 'a' twice;",
        "$: found 'b' twice;",
        f"$.calibration: found {tmp_path}/none.json: $: found no such file;",
    }


def refused_file(value: Any, folder: Path) -> list[str]:
    with pytest.raises(PolicyError) as found:
        load_policy(yaml_of(value, folder / "gate.yaml"))
    return [str(problem) for problem in found.value.problems]


def test_what_parts_of_a_policy_say_against_each_other_is_said_beside_what_is_wrong_in_them(tmp_path: Path) -> None:
    value = {"rules": {"x": {"min": 0.1, "max_drop": 1}, "cost": {"max": 1}, "y": {"min": "a"}}}
    assert {problem.partition(";")[0] for problem in refused_file(value, tmp_path)} == {
        "$.rules.y.min: found 'a'",
        "$: found max_drop without a baseline",
        "$: found a rule on cost without prices",
    }
    assert refused({"judge": {"fresh": True, "max_reused": 0.5, "calibrated": False, "labels": 3}, "thresholds": True}) == [
        "$.judge: found fresh: true with max_reused 0.5; wanted one of them: fresh means max_reused 0",
        "$.judge: found calibrated: false with other demands on the calibration; wanted calibrated: true, or none of them",
    ]


@pytest.mark.parametrize("part", ["must_pass", "waivers", "rules", "slices", "prices", "baseline", "config", "attestation", "calibration"])
@pytest.mark.parametrize("value", [5, "aa", True, [[]], [5, 5], {"x": 5}, {5: {}}, {"rules": 5}, {"x": {"rules": [1]}}, {"criteria": [1]}])
def test_a_part_of_a_wrong_kind_is_refused_beside_what_else_is_wrong(part: str, value: Any) -> None:
    found = refused({"rules": {"y": {"min": "a"}}, "thresholds": True, part: value, "min_cases": -1})
    assert any("$.min_cases" in problem for problem in found)
    assert "$: found 'a' twice; wanted each case of must_pass once" not in found
