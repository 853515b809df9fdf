"""The gate: from the evidence of a run to a decision, and from a decision to an alias in the model registry.

How a decision flows, and which file does which step:

1. **run → evidence**: `registry` brings what a run holds into a folder (`runs.files`); `runs.manifest` checks its state and the hashes of
   its artifacts; `runs.stored_run` reads them part by part; `runs.examined` checks the rows of each part, and puts it together as an
   `ExaminedRun`. A run is examined once, and everything after takes that. Scores stay in memory; `StoredCases` reads turns where a page shows them.
2. **policy**: `policy.load` reads what is demanded, `policy.model` is what it may say.
3. **baseline**: where rules compare, `promotion.baseline_search` finds the champion's run, and `rules.comparable` says whether it is about the same
   cases, judges and settings.
4. **rules → decision**: `rules.subset` leaves out what is waived and selects slices, `rules.measures` computes what rules are about,
   `rules.limits` checks it, `rules.checks` has the checks that need no measure, `rules.apply` goes through the policy,
   and `rules.decide` makes one `Decision` of it. These are pure.
5. **attestation**: where a policy demands it, `attestation` holds what was signed when the evaluation ended against the run;
   `attested_files` does so for a folder of files, without MLflow.
6. **decision → claim → alias**: `promotion.promote` records the decision (`promotion.record`, `signing.keys`) and sets the alias under a
   claim (`promotion.claim_log`), so that no two promotions win against the same champion.
7. **later**: `promotion.verify` decides again from the record, `promotion.aliases` audits aliases and takes them back, and a `Checkpoint` of
   `promotion.claim_log` pins how far a claim log had come.

`api` has the public functions, also `load_champion`, which hands out the version that verifies; `store.reaching` and `registry` are
the only modules that know MLflow.
"""
