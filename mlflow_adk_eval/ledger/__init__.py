"""What was paid for: judges' answers and conversations with the agent, in a database that outlives a killed run.

`CallCache` (`cache`) knows what is kept and for whom, and keeps secrets out of it. `database` tells which one is meant, says what is asked
in SQL that SQLite and PostgreSQL both understand, and has the file, which takes microseconds and belongs to one machine; `postgres` is a server, which
several hosts share. `trust` says who may have written it, and `upkeep` counts and forgets what is kept.
"""

from __future__ import annotations

from mlflow_adk_eval.ledger.cache import CallCache, StartedRun, opened
from mlflow_adk_eval.ledger.database import DEFAULT, VARIABLE, is_shared, ledger_source
from mlflow_adk_eval.ledger.upkeep import LedgerContents, Pruned

__all__ = ["DEFAULT", "VARIABLE", "CallCache", "LedgerContents", "Pruned", "StartedRun", "is_shared", "ledger_source", "opened"]
