"""What was paid for: judges' answers and conversations with the agent, in a database that outlives a killed run.

`CallCache` (`cache`) knows what is kept and for whom, and `statements` says it in SQL that SQLite and PostgreSQL both understand. What
differs is a class each: a file (`sqlite`), which takes microseconds and belongs to one machine, and a server (`postgres`), which several
hosts share. `source` tells which one is meant, `mask` keeps secrets out of both, and `upkeep` counts and forgets what is kept.
"""

from __future__ import annotations

from mlflow_adk_eval.ledger.cache import CallCache, StartedRun, opened
from mlflow_adk_eval.ledger.source import DEFAULT, VARIABLE, is_shared, ledger_source
from mlflow_adk_eval.ledger.upkeep import LedgerContents, Pruned

__all__ = ["DEFAULT", "VARIABLE", "CallCache", "LedgerContents", "Pruned", "StartedRun", "is_shared", "ledger_source", "opened"]
