"""The ledger's SQL, in words that SQLite and PostgreSQL share."""

from __future__ import annotations

from mlflow_adk_eval.ledger.database import Database

RUN_TEXTS = ("run_id", "lineage", "eval_set_digest", "config_digest", "agent_name", "agent_version", "status")
"""The columns of a run that are texts."""
PLACES = {"answer": ("address",), "conversation": ("lineage", "key")}
"""What tells where an entry of a kind stands."""
HELD = "run "
"""What the address begins with under which a run is held."""


class Statements:
    """Each statement, as one database takes it. All times are the database's own, so that no two clocks are compared."""

    def __init__(self, database: Database) -> None:
        """Fill in what differs between databases."""
        p, now = database.prefix, database.clock
        self.tables = table_statements(p, database.bytes_type)
        self.get = {
            kind: f"SELECT body, code FROM {p}{kind} WHERE {' AND '.join(f'{name} = :{name}' for name in names)}"
            for kind, names in PLACES.items()
        }
        put_answer = f"""
            INSERT INTO {p}answer (address, body, code, kept_at) VALUES (:address, :body, :code, {now})
            ON CONFLICT (address) DO UPDATE
            SET body = excluded.body, code = excluded.code, kept_at = excluded.kept_at, owner = NULL, until = NULL"""
        # Nobody can claim what is answered, or what another one holds whose lease runs; no lease is longer. `again`: although it is answered.
        self.claim = f"""
            INSERT INTO {p}answer (address, kept_at, owner, until) VALUES (:address, {now}, :owner, {now} + :lease_s)
            ON CONFLICT (address) DO UPDATE SET owner = excluded.owner, until = excluded.until,
                kept_at = CASE WHEN {p}answer.body IS NULL THEN excluded.kept_at ELSE {p}answer.kept_at END
            WHERE ({p}answer.body IS NULL OR :again) AND ({p}answer.until IS NULL OR {p}answer.owner = :owner
                OR {p}answer.until NOT BETWEEN {now} AND {now} + :lease_s)"""
        self.holder = f"SELECT owner, kept_at FROM {p}answer WHERE address = :address"
        self.renew = f"UPDATE {p}answer SET until = {now} + :lease_s WHERE address = :address AND owner = :owner"
        self.give_up = f"UPDATE {p}answer SET owner = NULL, until = NULL WHERE address = :address AND owner = :owner"
        put_conversation = f"""
            INSERT INTO {p}conversation (lineage, key, body, code, kept_at) VALUES (:lineage, :key, :body, :code, {now})
            ON CONFLICT (lineage, key) DO UPDATE SET body = excluded.body, code = excluded.code, kept_at = excluded.kept_at"""
        self.put = {"answer": put_answer, "conversation": put_conversation}
        self.begin = f"""
            INSERT INTO {p}run (run_id, lineage, eval_set_digest, config_digest, agent_name, agent_version, status, started_at, code)
            VALUES (:run_id, :lineage, :eval_set_digest, :config_digest, :agent_name, :agent_version, :status, :started, :code)
            ON CONFLICT (run_id) DO UPDATE SET
                lineage = excluded.lineage, code = excluded.code, eval_set_digest = excluded.eval_set_digest, config_digest = excluded.config_digest,
                agent_name = excluded.agent_name, agent_version = excluded.agent_version,
                status = excluded.status, started_at = excluded.started_at"""
        self.finish = f"UPDATE {p}run SET status = 'finished' WHERE run_id = :run_id"
        known = f"SELECT {', '.join(RUN_TEXTS)}, started_at, code FROM {p}run"
        self.run = f"{known} WHERE run_id = :run_id"
        self.runs = f"{known} ORDER BY started_at DESC, run_id DESC"
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
        self.count_claims = f"SELECT count(*) FROM {p}answer WHERE owner IS NOT NULL AND until > {now} AND address NOT LIKE '{HELD}%'"
        self.answers_after = f"SELECT address, body FROM {p}answer WHERE address > :after AND body IS NOT NULL ORDER BY address LIMIT :page"
        self.accounts = f"SELECT name, body FROM {p}account ORDER BY name"
        self.read_account = f"""
            SELECT {now}, version, body, code FROM (SELECT 1 AS one) AS always LEFT JOIN {p}account ON name = :name"""
        self.write_account = f"""
            INSERT INTO {p}account (name, version, body, code, kept_at) VALUES (:name, 1, :body, :code, {now})
            ON CONFLICT (name) DO UPDATE SET version = {p}account.version + 1, body = excluded.body, code = excluded.code, kept_at = excluded.kept_at
            WHERE {p}account.version = :version"""


def table_statements(p: str, bytes_type: str) -> tuple[str, ...]:
    """Return what makes the tables."""
    return (
        f"""CREATE TABLE IF NOT EXISTS {p}answer (
            address TEXT PRIMARY KEY, body {bytes_type}, code {bytes_type}, kept_at DOUBLE PRECISION NOT NULL, owner TEXT, until DOUBLE PRECISION)""",
        f"""CREATE TABLE IF NOT EXISTS {p}conversation (
            lineage TEXT NOT NULL, key TEXT NOT NULL, body {bytes_type} NOT NULL, code {bytes_type}, kept_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (lineage, key))""",
        f"""CREATE TABLE IF NOT EXISTS {p}run (
            run_id TEXT PRIMARY KEY, lineage TEXT NOT NULL, eval_set_digest TEXT NOT NULL, config_digest TEXT NOT NULL,
            agent_name TEXT NOT NULL, agent_version TEXT NOT NULL, status TEXT NOT NULL, started_at DOUBLE PRECISION NOT NULL, code {bytes_type})""",
        f"""CREATE TABLE IF NOT EXISTS {p}account (
            name TEXT PRIMARY KEY, version INTEGER NOT NULL, body TEXT NOT NULL, code {bytes_type}, kept_at DOUBLE PRECISION NOT NULL)""",
    )
