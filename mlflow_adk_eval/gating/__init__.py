"""The gate: from the evidence of a run to a decision, and from a decision to an alias in the model registry.

How a decision flows, and which file does which step:

1. **run → evidence**: `mlflow_store` brings what a run holds into a folder (`results.files`); `evidence.integrity` checks its state and the hashes of
   its artifacts; `evidence.documents` reads them part by part, and `evidence.table` the rows of each part; `evidence.examine` puts it together as an
   `ExaminedRun`. A run is examined once, and everything after takes that. Scores stay in memory; `evidence.rows` reads turns where a page shows them.
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
