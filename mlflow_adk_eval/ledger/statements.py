"""The ledger's SQL, in words that SQLite and PostgreSQL share."""

from __future__ import annotations

from mlflow_adk_eval.ledger.database import Database

RUN_TEXTS = ("run_id", "eval_set_digest", "config_digest", "agent_name", "agent_version", "status")
"""The columns of a run that are texts."""


class Statements:
    """Each statement, as one database takes it. All times are the database's own, so that no two clocks are compared."""

    def __init__(self, database: Database) -> None:
        """Fill in what differs between databases."""
        p, now = database.prefix, database.clock
        self.tables = table_statements(p, database.bytes_type)
        self.get_answer = f"SELECT body FROM {p}answer WHERE address = :address"
        self.put_answer = f"""
            INSERT INTO {p}answer (address, body, kept_at) VALUES (:address, :body, {now})
            ON CONFLICT (address) DO UPDATE SET body = excluded.body, kept_at = excluded.kept_at, owner = NULL, until = NULL"""
        # Nobody can claim what is answered, or what another one holds whose lease runs. `again`: although it is answered.
        self.claim = f"""
            INSERT INTO {p}answer (address, kept_at, owner, until) VALUES (:address, {now}, :owner, {now} + :lease_s)
            ON CONFLICT (address) DO UPDATE SET owner = excluded.owner, until = excluded.until
            WHERE ({p}answer.body IS NULL OR :again) AND ({p}answer.until IS NULL OR {p}answer.until <= {now})"""
        self.renew = f"UPDATE {p}answer SET until = {now} + :lease_s WHERE address = :address AND owner = :owner"
        self.give_up = f"UPDATE {p}answer SET owner = NULL, until = NULL WHERE address = :address AND owner = :owner"
        self.get_conversation = f"SELECT body FROM {p}conversation WHERE lineage = :lineage AND key = :key"
        self.put_conversation = f"""
            INSERT INTO {p}conversation (lineage, key, body, kept_at) VALUES (:lineage, :key, :body, {now})
            ON CONFLICT (lineage, key) DO UPDATE SET body = excluded.body, kept_at = excluded.kept_at"""
        self.begin = f"""
            INSERT INTO {p}run (run_id, lineage, eval_set_digest, config_digest, agent_name, agent_version, status, started_at)
            VALUES (:run_id, :lineage, :eval_set_digest, :config_digest, :agent_name, :agent_version, :status, :started)
            ON CONFLICT (run_id) DO UPDATE SET
                eval_set_digest = excluded.eval_set_digest, config_digest = excluded.config_digest,
                agent_name = excluded.agent_name, agent_version = excluded.agent_version,
                status = excluded.status, started_at = excluded.started_at"""
        self.finish = f"UPDATE {p}run SET status = 'finished' WHERE run_id = :run_id"
        self.lineage = f"SELECT lineage FROM {p}run WHERE run_id = :run_id"
        self.runs = f"SELECT {', '.join(RUN_TEXTS)}, started_at FROM {p}run ORDER BY started_at DESC, run_id DESC"
        self.adopt = (
            f"UPDATE {p}run SET lineage = :old WHERE lineage = :new",
            f"""UPDATE {p}conversation SET lineage = :old
                WHERE lineage = :new AND key NOT IN (SELECT key FROM {p}conversation WHERE lineage = :old)""",
        )
        # What somebody is asking again is not forgotten meanwhile.
        old_answer = f"FROM {p}answer WHERE kept_at <= {now} - :age_s AND body IS NOT NULL AND (until IS NULL OR until <= {now})"
        old_conversation = f"FROM {p}conversation WHERE kept_at <= {now} - :age_s"
        old_run = f"FROM {p}run WHERE started_at <= {now} - :age_s"
        self.count_old = tuple(f"SELECT count(*) {old}" for old in (old_answer, old_conversation, old_run))
        self.prune = (
            f"DELETE {old_answer}",
            f"DELETE {old_conversation}",
            f"DELETE FROM {p}answer WHERE body IS NULL AND (until IS NULL OR until <= {now})",
            f"DELETE {old_run}",
            f"DELETE FROM {p}account WHERE kept_at <= {now} - :age_s",
        )
        of_lineage = tuple(f"{old} AND lineage = :lineage" for old in (old_conversation, old_run))
        self.count_old_of_run = (None, *(f"SELECT count(*) {old}" for old in of_lineage))
        self.prune_run = tuple(f"DELETE {old}" for old in of_lineage)
        self.count_old_answer = f"SELECT count(*) {old_answer} AND address = :address"
        self.prune_answer = f"DELETE {old_answer} AND address = :address"
        self.answers_held = f"SELECT count(*), sum(length(body)), min(kept_at), max(kept_at) FROM {p}answer WHERE body IS NOT NULL"
        self.conversations_held = f"SELECT count(*), sum(length(body)), min(kept_at), max(kept_at) FROM {p}conversation"
        self.count_runs = f"SELECT count(*) FROM {p}run"
        self.count_claims = f"SELECT count(*) FROM {p}answer WHERE owner IS NOT NULL AND until > {now}"
        self.answers_after = f"SELECT address, body FROM {p}answer WHERE address > :after AND body IS NOT NULL ORDER BY address LIMIT :page"
        self.accounts = f"SELECT name, body FROM {p}account ORDER BY name"
        self.read_account = f"""
            SELECT {now}, version, body FROM (SELECT 1 AS one) AS always LEFT JOIN {p}account ON name = :name"""
        self.write_account = f"""
            INSERT INTO {p}account (name, version, body, kept_at) VALUES (:name, 1, :body, {now})
            ON CONFLICT (name) DO UPDATE SET version = {p}account.version + 1, body = excluded.body, kept_at = excluded.kept_at
            WHERE {p}account.version = :version"""


def table_statements(p: str, bytes_type: str) -> tuple[str, ...]:
    """Return what makes the tables."""
    return (
        f"""CREATE TABLE IF NOT EXISTS {p}answer (
            address TEXT PRIMARY KEY, body {bytes_type}, kept_at DOUBLE PRECISION NOT NULL, owner TEXT, until DOUBLE PRECISION)""",
        f"""CREATE TABLE IF NOT EXISTS {p}conversation (
            lineage TEXT NOT NULL, key TEXT NOT NULL, body {bytes_type} NOT NULL, kept_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (lineage, key))""",
        f"""CREATE TABLE IF NOT EXISTS {p}run (
            run_id TEXT PRIMARY KEY, lineage TEXT NOT NULL, eval_set_digest TEXT NOT NULL, config_digest TEXT NOT NULL,
            agent_name TEXT NOT NULL, agent_version TEXT NOT NULL, status TEXT NOT NULL, started_at DOUBLE PRECISION NOT NULL)""",
        f"""CREATE TABLE IF NOT EXISTS {p}account (
            name TEXT PRIMARY KEY, version INTEGER NOT NULL, body TEXT NOT NULL, kept_at DOUBLE PRECISION NOT NULL)""",
    )
