"""The gate: from the evidence of a run to a decision, and from a decision to an alias in the model registry.

How a decision flows, and which file does which step:

1. **run → evidence**: `mlflow_store` reads what a run holds; `evidence.integrity` checks its state, the hashes of its artifacts and its
   documents; `evidence.table` reads the results back from the per-invocation table; `evidence.examine` puts them together as an
   `ExaminedRun`. A run is examined once, and everything after takes that.
2. **policy**: `policy.load` reads what is demanded, `policy.model` is what it may say.
3. **baseline**: where rules compare, `baseline.search` finds the champion's run, and `baseline.comparable` says whether it is about the same
   cases, judges and settings.
4. **rules → decision**: `rules.subset` leaves out what is waived and selects slices, `rules.measures` computes what rules are about,
   `rules.min_max` and `rules.max_drop` check it, `rules.checks` has the checks that need no measure, `rules.apply` goes through the policy,
   and `rules.decide` makes one `Decision` of it. These are pure.
5. **attestation**: where a policy demands it, `attestation.check` holds what was signed when the evaluation ended (`attestation.evaluation`) against the run;
   `attestation.files` does so for a folder of files, without MLflow.
6. **decision → claim → alias**: `promotion.promote` records the decision (`promotion.record`, `attestation.keys`) and sets the alias under a
   claim (`promotion.alias_lock`, `promotion.claim_log`), so that no two promotions win against the same champion.
7. **later**: `promotion.verify` decides again from the record, `promotion.aliases` audits aliases and takes them back, `promotion.checkpoint`
   pins how far a claim log had come, and `champion` hands out the version that verifies.

`api` has the public functions; `mlflow_client` and `mlflow_store` are the only modules that know MLflow.
"""
