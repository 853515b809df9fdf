"""Random edits, alone and in pairs, of everything that MLflow's API lets one write: no promotion that should not be passes and verifies.

`MLFLOW_ADK_EVAL_EDITS` says how many edits there are, `MLFLOW_ADK_EVAL_EDITS_SEED` which ones.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException

from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.gating.api import audit, promote, rollback, verify
from mlflow_adk_eval.gating.promotion.claim_log import key_of
from mlflow_adk_eval.gating.registry import claims_experiment
from mlflow_adk_eval.signing.keys import make_key
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import TRAJECTORY, Lab
from tests.profiles import WITH_SLOW


def digest(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()


pytestmark = pytest.mark.slow
EDITS = {"quick": 60, "full": 120}
EDITS_PER_SCENE = 24
AUDITED = 0.2
"""The share of edits after which the alias is audited, too."""
POLICY = {"rules": {TRAJECTORY: {"min": 0.5, "max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}
Edit = tuple[str, Callable[[], object]]


@dataclass
class Scene:
    """A model with a champion, one that was rolled back, one that may be promoted, and one that may not."""

    lab: Lab
    name: str
    luck: random.Random
    signing: dict[str, Any]
    verifying: dict[str, Any]
    entrants: dict[str, Entrant] = field(default_factory=dict)
    rightful: set[str] = field(default_factory=set)
    """The versions that may hold the alias."""
    edits: list[str] = field(default_factory=list)

    def build(self) -> Scene:
        self.entrants = {what: Entrant(self.lab, self.name, good=what != "bad") for what in ("champion", "rude", "good", "bad")}
        for what in ("champion", "rude"):
            self.promote(what)
        rollback(self.name, reason="it is rude", tracking_uri=self.lab.uri, **self.signing)
        self.rightful = {self.entrants["champion"].version}
        return self

    def promote(self, what: str) -> bool:
        entrant = self.entrants[what]
        how = {"policy": POLICY, "raise_on_failure": False, "tracking_uri": self.lab.uri}
        return promote(self.name, entrant.version, run_id=entrant.run_id, **how, **self.signing).passed

    def edit(self) -> str:
        """Make an edit and return of which kind."""
        kind = "edit"
        try:
            kind, edit = self.luck.choice([self.run_edit, self.model_edit, self.log_edit])()
            edit()
        except MlflowException:
            kind += ", refused by MLflow"
        self.edits.append(kind)
        return kind

    def value(self, *likely: str) -> str:
        versions = [entrant.version for entrant in self.entrants.values()]
        runs = [entrant.run_id for entrant in self.entrants.values()]
        return self.luck.choice([*likely, *versions, *runs, "", "passed", "complete", "1.0", "x" * 500, "{}", "None"])

    def run_edit(self) -> Edit:
        client, luck, run_id = self.lab.client, self.luck, self.luck.choice([one.run_id for one in self.entrants.values()])
        run, other = client.get_run(run_id), client.get_run(self.luck.choice([one.run_id for one in self.entrants.values()]))
        tag = luck.choice(sorted({*run.data.tags, "adk_eval.verdict", "adk_eval.evidence"}))
        param = luck.choice(sorted({*run.data.params, "adk_eval.new", "adk_eval.evidence"}))
        metric = luck.choice(sorted({*run.data.metrics, "cases", "case_pass_rate"}))
        files = sorted(
            path.relative_to(self.lab.artifacts(run_id)).as_posix() for path in self.lab.artifacts(run_id).rglob("*") if path.is_file()
        )
        file = luck.choice(files)
        return luck.choice([
            ("run tag set", lambda: client.set_tag(run_id, tag, self.value(other.data.tags.get(tag, "")))),
            ("run tag deleted", lambda: client.delete_tag(run_id, tag)),
            ("parameter logged", lambda: client.log_param(run_id, param, self.value(other.data.params.get(param, "")))),
            ("metric logged", lambda: client.log_metric(run_id, metric, luck.choice([0.0, 1.0, 1000.0, -1.0]))),
            ("status set", lambda: client.update_run(run_id, luck.choice(["FINISHED", "FAILED", "RUNNING", "KILLED"]))),
            ("run deleted", lambda: client.delete_run(run_id)),
            ("run restored", lambda: client.restore_run(run_id)),
            ("artifact overwritten", lambda: client.log_text(run_id, self.value(), file)),
            ("artifact swapped", lambda: self.swap(run_id, other.info.run_id, file)),
            ("artifact deleted", (self.lab.artifacts(run_id) / file).unlink),
        ])  # fmt: skip

    def swap(self, run_id: str, other: str, file: str) -> None:
        found = self.lab.artifacts(other) / file
        if found.exists():
            (self.lab.artifacts(run_id) / file).write_bytes(found.read_bytes())

    def model_edit(self) -> Edit:
        client, luck, name = self.lab.client, self.luck, self.name
        version, other = (luck.choice(list(self.entrants.values())) for _ in range(2))
        tags = version.tags
        key = luck.choice(sorted({*tags, "adk_eval.gate", "mlflow.adk_eval.gate.passed.champion", "adk_eval.gate.alias"}))
        return luck.choice([
            ("alias set", lambda: client.set_registered_model_alias(name, "champion", version.version)),
            ("alias deleted", lambda: client.delete_registered_model_alias(name, "champion")),
            ("version tag set", lambda: client.set_model_version_tag(name, version.version, key, self.value(other.tags.get(key, "")))),
            ("version tag deleted", lambda: client.delete_model_version_tag(name, version.version, key)),
            ("all tags of another version", lambda: [client.set_model_version_tag(name, version.version, *tag) for tag in other.tags.items()]),
            ("model tag set", lambda: client.set_registered_model_tag(name, "adk_eval.gate.claim_log", self.value())),
            ("model tag deleted", lambda: client.delete_registered_model_tag(name, "adk_eval.gate.claim_log")),
            ("agent tag set", lambda: client.set_logged_model_tags(version.model_id, {"adk_eval.fingerprint": self.value()})),
            ("model created again", lambda: self.recreate(rename=False)),
            ("model renamed and created again", lambda: self.recreate(rename=True)),
            ("version deleted", lambda: client.delete_model_version(name, version.version)),
            ("version copied", lambda: client.copy_model_version(f"models:/{name}/{version.version}", name)),
        ])  # fmt: skip

    def tags_of(self, entrant: Entrant) -> dict[str, str]:
        try:
            return entrant.tags
        except MlflowException:  # it was deleted
            return {}

    def recreate(self, *, rename: bool) -> None:
        """Give the name to a new model with versions of the same agents in another order, some with the tags of their namesakes, and the alias."""
        client, name, luck = self.lab.client, self.name, self.luck
        tags = {entrant.version: self.tags_of(entrant) for entrant in self.entrants.values()}
        client.rename_registered_model(name, f"{name} {luck.random()}") if rename else client.delete_registered_model(name)
        self.rightful = set()  # whoever had the alias is no more
        for entrant in luck.sample(list(self.entrants.values()), len(self.entrants)):
            entrant.version = self.lab.register(name, f"models:/{entrant.model_id}")
            for key, value in tags.get(entrant.version, {}).items() if luck.random() < 0.7 else ():
                client.set_model_version_tag(name, entrant.version, key, value)
        if luck.random() < 0.7:
            client.set_registered_model_alias(name, "champion", luck.choice(list(self.entrants.values())).version)

    def log_edit(self) -> Edit:
        client, luck, experiment = self.lab.client, self.luck, self.lab.client.get_experiment_by_name(claims_experiment(self.name))
        if experiment is None:
            return "claim log made", lambda: client.create_experiment(claims_experiment(self.name))
        run_id = experiment.tags.get("adk_eval.gate.claim_log", "")
        claims = dict(client.get_run(run_id).data.params) if run_id else {}
        number = luck.randint(1, len([key for key in claims if key.count(".") == 1]) + 2)
        key = luck.choice(
            [key_of("champion", number), *(f"{key}{luck.choice(['', '.x'])}" for key in claims), "champion.999999999", "champion.0001.end"]
        )
        text = luck.choice([*claims.values(), self.value()])
        tag = luck.choice(["adk_eval.gate.claim_log", "adk_eval.gate.model"])
        return luck.choice([
            ("claim written", lambda: client.log_param(run_id, key, text.replace(luck.choice(['"1"', '"2"', "lost"]), luck.choice(['"4"', '"2"', "done"])))),
            ("claim log renamed", lambda: client.rename_experiment(experiment.experiment_id, f"{self.name} {luck.random()}")),
            ("claim log deleted", lambda: client.delete_experiment(experiment.experiment_id)),
            ("claim log restored", lambda: client.restore_experiment(experiment.experiment_id)),
            ("claim log's run deleted", lambda: client.delete_run(run_id)),
            ("claim log's run restored", lambda: client.restore_run(run_id)),
            ("claim log's tag set", lambda: client.set_experiment_tag(experiment.experiment_id, tag, self.value())),
            ("claim log copied", lambda: self.copy(claims)),
        ])  # fmt: skip

    def copy(self, claims: dict[str, str]) -> None:
        client = self.lab.client
        experiment = client.get_experiment_by_name(claims_experiment(self.name))
        client.rename_experiment(experiment.experiment_id, f"{self.name} {self.luck.random()}")
        new = client.create_experiment(claims_experiment(self.name))
        run_id = client.create_run(new).info.run_id
        client.set_experiment_tag(new, "adk_eval.gate.claim_log", run_id)
        kept = self.luck.randint(0, len(claims))
        for key, text in sorted(claims.items())[:kept]:
            client.log_param(run_id, key, text)

    def looks_new(self) -> bool:
        """Whether nothing is left that says that there was a champion, which docs/explanation/security.md says is believed without a checkpoint."""
        client, name = self.lab.client, claims_experiment(self.name)
        claim_log = client.get_experiment_by_name(name)
        tagged = client.search_experiments(filter_string=f"tags.`adk_eval.gate.model` = '{digest(self.name)}'", view_type=ViewType.ALL)
        known = claim_log is None and not tagged and "adk_eval.gate.claim_log" not in client.get_registered_model(self.name).tags
        passed = any(key.startswith("mlflow.adk_eval.gate.passed.") for entrant in self.entrants.values() for key in self.tags_of(entrant))
        return known and not passed and self.lab.alias(self.name) is None

    def check(self, outcomes: Counter[str]) -> bool:
        """Try to promote the one that may not be, now and then the one that may, and look who verifies; return whether to go on."""
        new = "checkpoint" not in self.signing and self.looks_new()
        if self.attempt("bad", outcomes):
            assert new, f"a version was promoted that should not be, after {self.edits}"
            outcomes["limit: it looked new"] += 1
            return False
        if self.luck.random() < 0.2 and self.attempt("good", outcomes):
            self.rightful = {self.entrants["good"].version}
        try:
            verified = verify(self.name, alias="champion", tracking_uri=self.lab.uri, **self.verifying)
        except AdkEvalError as error:
            outcomes[f"verify: {type(error).__name__}"] += 1
        else:
            outcomes[f"verify: {verified.verdict}"] += 1
            assert not verified.passed or self.lab.alias(self.name) in self.rightful, "a version verifies that holds the alias wrongly"
        if self.luck.random() > AUDITED:
            return True
        for found in audit(self.name, "champion", tracking_uri=self.lab.uri, **self.verifying):
            assert not found.valid or found.version in self.rightful
        return True

    def attempt(self, what: str, outcomes: Counter[str]) -> bool:
        try:
            passed = self.promote(what)
        except AdkEvalError as error:
            outcomes[f"promote: {type(error).__name__}"] += 1
            return False
        outcomes[f"{what}: {'passed' if passed else 'refused'}"] += 1
        return passed


@pytest.mark.parametrize("signed", [False, True], ids=["without keys", "with a key and a checkpoint"])
def test_no_edit_promotes_what_should_not_be(signed: bool, lab: Lab, model: str, tmp_path: Any) -> None:
    if lab.uri.startswith("http"):
        pytest.skip("the requests are the same; a thousand of them take minutes through a server")
    profile = "full" if WITH_SLOW else "quick"
    count = int(os.environ.get("MLFLOW_ADK_EVAL_EDITS", EDITS[profile])) // 2
    luck = random.Random(int(os.environ.get("MLFLOW_ADK_EVAL_EDITS_SEED", "14")) + signed)
    public = make_key(tmp_path / "key.pem")
    checkpoint = tmp_path / "claims.json"
    signing = {"signing_key": tmp_path / "key.pem", "checkpoint": checkpoint} if signed else {}
    verifying = {"verify_key": public, "checkpoint": checkpoint} if signed else {}
    kinds, outcomes, done, number = Counter[str](), Counter[str](), 0, 0
    while done < count:
        scene, number = Scene(lab, f"{model}_{number}", luck, signing, verifying).build(), number + 1
        assert verify(scene.name, alias="champion", tracking_uri=lab.uri, **verifying).passed, "nothing was edited yet"
        for _ in range(EDITS_PER_SCENE // 2):
            edits = luck.choice([1, 2, 2])
            kinds.update(scene.edit() for _ in range(edits))
            done += edits
            if not scene.check(outcomes):
                break
    print(f"\n{done} edits in {number} models: {dict(kinds)}; {dict(outcomes)}")  # noqa: T201 - how many there were of each kind
    assert outcomes["bad: refused"] > done / 4
