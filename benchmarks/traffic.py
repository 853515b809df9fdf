"""Production's traces, made up: as many as wanted, in MLflow's own database, within minutes.

MLflow itself writes the traces of `_PATTERNS` conversations. Their rows are then inserted again and again with other ids, times and texts, so all
traces are stored as MLflow stores them. Half of the conversations are those of an agent that speaks as OpenAI's clients do, half of one of google-adk.
Three conversations of five have one turn, the others two to five. In every tenth the last turn fails, people disliked every 25th and liked
every tenth, and one turn of 50 is ten times as slow as the others.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from data import Generator, Json

EXPERIMENT = "production"
DAYS = 7
"""Over how many days before now they spread."""
_PATTERNS = 400
_AT_ONCE = 500
_MS, _S = 1_000_000, 1_000_000_000
_MODEL = "gpt-4o-mini"
_INSTRUCTIONS = "You are a travel agent. Look up what you need, and answer in the language of the user."
_KINDS = ("openai", "adk")


@dataclass(frozen=True, slots=True)
class _Step:
    """A span to be: what it is called, in which it is, how long it takes, and its attributes."""

    name: str
    parent: int | None
    seconds: float
    attributes: Json
    kind: str = "LLM"
    inputs: Any = None
    outputs: Any = None


def fill(uri: str, count: int, *, heavy: int = 20, heavy_mb: int = 40, artifacts: str | None = None) -> None:
    """Write `count` traces into a new experiment of an MLflow database.

    Args:
        uri: the database.
        count: how many traces there will be, or up to four more.
        heavy: how many of them have a tool that answered with `heavy_mb` megabytes.
        heavy_mb: how many.
        artifacts: where the experiment keeps its artifacts.
    """
    from mlflow import MlflowClient
    from mlflow.tracing.client import TracingClient

    experiment_id = MlflowClient(uri).create_experiment(EXPERIMENT, artifact_location=artifacts)
    store = TracingClient(uri).store
    rng = random.Random(11)
    began_ns = time.time_ns() - DAYS * 86_400 * _S
    written = 0
    patterns: list[list[str]] = []
    generator = Generator()
    for number in range(_PATTERNS):
        if written >= count:
            break
        patterns.append(_conversation(store, experiment_id, generator, rng, number, began_ns))
        written += len(patterns[-1])
    rows = _Rows(store, [trace_id for pattern in patterns for trace_id in pattern])
    places: list[tuple[int, int]] = []
    while written < count:
        number = len(patterns) + len(places)
        places.append((number, number % len(patterns)))
        written += len(patterns[places[-1][1]])
    with_tools = [place for place, (_, pattern) in enumerate(places) if rows.has_tool(patterns[pattern][0])]
    big = {with_tools[index * len(with_tools) // heavy] for index in range(heavy)} if len(with_tools) >= heavy else set()
    gap_ns = (DAYS * 24 - 2) * 3600 * _S // (len(places) + 1)
    batch: dict[str, list[Json]] = {}
    for place, (number, pattern) in enumerate(places):
        for turn, trace_id in enumerate(patterns[pattern]):
            rows.copy(trace_id, number, turn, place * gap_ns, heavy_mb if place in big and not turn else 0, batch)
        if place in big or place % _AT_ONCE == 0:
            rows.insert(batch)
            batch = {}
    rows.insert(batch)


class _Rows:
    """The rows of the patterns' traces, by table."""

    _TABLES = ("SqlTraceInfo", "SqlTraceTag", "SqlTraceMetadata", "SqlSpan", "SqlAssessments")

    def __init__(self, store: Any, trace_ids: Sequence[str]) -> None:
        from mlflow.store.tracking.dbmodels import models
        from sqlalchemy import select

        self._store = store
        self._tables = {(table := getattr(models, name).__table__).name: table for name in self._TABLES}
        self._of: dict[str, dict[str, list[Json]]] = {trace_id: {} for trace_id in trace_ids}
        self._big = ""
        with store.ManagedSessionMaker(read_only=True) as session:
            for name, table in self._tables.items():
                written = [column.name for column in table.columns if column.computed is None]
                for row in session.execute(select(*(table.c[column] for column in written))).mappings():
                    key = row.get("trace_id") or row["request_id"]
                    if key in self._of:
                        self._of[key].setdefault(name, []).append(dict(row))

    def has_tool(self, trace_id: str) -> bool:
        """Whether a tool was called in a trace."""
        return any(row["type"] == "TOOL" for row in self._of[trace_id]["spans"])

    def copy(self, trace_id: str, number: int, turn: int, later_ns: int, heavy_mb: int, batch: dict[str, list[Json]]) -> None:
        """Add to a batch the rows of a trace, as those of a turn of another conversation."""
        mine = trace_id_of(number, turn)
        old = _ticket(int(self._of[trace_id]["trace_info"][0]["trace_name"].partition("#")[2]))
        later_ms = later_ns // _MS
        tools = sorted((row for row in self._of[trace_id]["spans"] if row["type"] == "TOOL"), key=lambda row: row["start_time_unix_nano"])
        # Ids stand in texts as hexadecimal digits and as base 64; a text, and the session, contain the number of the conversation.
        swaps = ((trace_id, mine), (_base64(trace_id), _base64(mine)), (old, _ticket(number)))
        for name, rows in self._of[trace_id].items():
            for row in rows:
                new = dict(row)
                for column, value in row.items():
                    if isinstance(value, str):
                        for before, after in swaps:
                            value = value.replace(before, after)  # noqa: PLW2901 - the same value, changed
                        new[column] = value
                    elif value is not None and column.endswith(("timestamp_ms", "_timestamp")):
                        new[column] = value + later_ms
                    elif value is not None and column.endswith("_time_unix_nano"):
                        new[column] = value + later_ns
                if name == "spans":
                    new["content"] = re.sub(
                        r'_time_unix_nano": (\d+)', lambda at: f'_time_unix_nano": {int(at[1]) + later_ns}', new["content"]
                    )
                    if heavy_mb and (row["type"] != "TOOL" or row is tools[-1]):
                        new["content"] = self._grown(new["content"], heavy_mb)
                if heavy_mb and row.get("key") == "mlflow.trace.sizeBytes":
                    new["value"] = str(int(row["value"]) + heavy_mb * 1_000_000)
                if name == "assessments":
                    new["assessment_id"] = f"a-{hashlib.sha256((mine + row['assessment_id']).encode()).hexdigest()[:32]}"
                batch.setdefault(name, []).append(new)

    def insert(self, batch: dict[str, list[Json]]) -> None:
        """Write rows in one transaction."""
        if batch:
            with self._store.ManagedSessionMaker(read_only=False) as session:
                for name, table in self._tables.items():
                    if batch.get(name):
                        session.execute(table.insert(), batch[name])

    def _grown(self, content: str, mb: int) -> str:
        """Return a span in which the last tool of a turn answered so much that the trace has so many megabytes: models are sent it, too."""
        span = json.loads(content)
        attributes = span["attributes"]
        # An agent of google-adk has what its model was sent in two attributes.
        share = mb * 1_000_000 // (3 if "gen_ai.conversation.id" in attributes else 2)
        if attributes["mlflow.spanType"] == '"TOOL"':
            attributes["mlflow.spanOutputs"] = self._rows_of(share)
            return json.dumps(span)
        for name in attributes.keys() & {"mlflow.spanInputs", "gen_ai.input.messages"}:
            asked = json.loads(attributes[name])
            messages = asked if isinstance(asked, list) else asked["messages"]
            parts = [part for message in messages for part in message.get("parts", [message])]
            answer = next((part for part in reversed(parts) if "tool_call_id" in part or part.get("type") == "tool_call_response"), None)
            if answer and "tool_call_id" in answer:
                answer["content"] = self._rows_of(share)
            elif answer:
                answer["response"] = json.loads(self._rows_of(share))
            attributes[name] = json.dumps(asked)
        return json.dumps(span)

    def _rows_of(self, size: int) -> str:
        """Return rows of a database as JSON."""
        if len(self._big) < size:
            rng, rows, length = random.Random(5), list[str](), 0
            while length < size:
                rows.append(json.dumps({"flight": rng.getrandbits(40), "price": rng.random(), "note": f"{rng.getrandbits(400):x}"}))
                length += len(rows[-1]) + 2
            self._big = ", ".join(rows)
        cut = self._big.find("}", size - 500) + 1
        return f'{{"rows": [{self._big[:cut]}]}}'


def trace_id_of(number: int, turn: int) -> str:
    """Return the id of a turn's trace."""
    return f"tr-{hashlib.sha256(f'traffic {number}/{turn}'.encode()).hexdigest()[:32]}"


def _ticket(number: int) -> str:
    return f"ticket-{number:08}"


def _base64(trace_id: str) -> str:
    return base64.b64encode(bytes.fromhex(trace_id.removeprefix("tr-"))).decode()


def _conversation(store: Any, experiment_id: str, generator: Generator, rng: random.Random, number: int, began_ns: int) -> list[str]:
    """Let MLflow write the traces of a conversation, and return their ids."""
    from mlflow import entities
    from mlflow.entities.span import Span

    kind = _KINDS[number % 2]
    turns = 1 if rng.random() < 0.6 else rng.randint(2, 5)
    _, played, _ = generator.case(_ticket(number), turns)
    session = f"session-{_ticket(number)}" if turns > 1 or kind == "adk" else ""
    found, history = list[str](), list[Json]()
    start_ns = began_ns + number * 10 * _S
    for turn, said in enumerate(played["invocations"]):
        trace_id = trace_id_of(number, turn)
        fails = number % 10 == 0 and turn == turns - 1
        slow = 10.0 if rng.random() < 0.02 else 1.0
        question = f"{_ticket(number)}: {said['user_content']['parts'][0]['text']}"
        answer = said["final_response"]["parts"][0]["text"]
        calls = list(_calls(said))
        steps = (_openai if kind == "openai" else _adk)(question, answer, calls, rng, slow, fails, history, session)
        spans, usage, ended_ns = _spans(trace_id, steps, start_ns, fails)
        place = {"create_time_ms": ended_ns // _MS, "last_update_time_ms": ended_ns // _MS, "trace_id": trace_id}
        liked = {1: False, 2: True, 12: True, 22: True}.get(number % 25 if turn == turns - 1 else -1)
        by = entities.AssessmentSource("HUMAN", "reader@example.com")
        assessments = [] if liked is None else [entities.Feedback(name="user_feedback", value=liked, source=by, **place)]
        store.start_trace(
            entities.TraceInfo(
                trace_id=trace_id,
                trace_location=entities.TraceLocation.from_experiment_id(experiment_id),
                request_time=start_ns // _MS,
                execution_duration=(ended_ns - start_ns) // _MS,
                state=entities.TraceState.ERROR if fails else entities.TraceState.OK,
                request_preview=question[:1000],
                response_preview=None if fails else answer[:1000],
                trace_metadata={
                    "mlflow.trace_schema.version": "3",
                    "mlflow.trace.tokenUsage": json.dumps(usage),
                    "mlflow.trace.sizeBytes": str(sum(len(json.dumps(span)) for span in spans)),
                    "mlflow.traceInputs": question[:1000],
                    "mlflow.traceOutputs": "" if fails else answer[:1000],
                    "mlflow.user": "agent",
                    "mlflow.source.name": "/srv/agent/main.py",
                    "mlflow.source.type": "LOCAL",
                    **({"mlflow.trace.session": session} if session else {}),
                },
                tags={"mlflow.traceName": f"{spans[0]['name']} #{number}"},
                assessments=assessments,
            )
        )
        store.log_spans(experiment_id, [Span.from_dict(span) for span in spans])
        found.append(trace_id)
        history += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        start_ns = ended_ns + 20 * _S
    return found


def _calls(said: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield each call of a turn with its arguments and its answer."""
    parts = [part for event in said["intermediate_data"]["invocation_events"] for part in event["content"]["parts"]]
    for call, answer in zip(parts[::2], parts[1::2], strict=True):
        yield call["function_call"]["name"], call["function_call"]["args"], answer["function_response"]["response"]


def _tokens(asked: Any, answered: Any) -> Json:
    into, out = (len(json.dumps(one)) // 4 for one in (asked, answered))
    return {"input_tokens": into, "output_tokens": out, "total_tokens": into + out}


def _openai(
    question: str,
    answer: str,
    calls: Sequence[tuple[str, Json, Json]],
    rng: random.Random,
    slow: float,
    fails: bool,
    history: Sequence[Json],  # noqa: ARG001 - this agent forgets
    session: str,  # noqa: ARG001 - stands in the trace alone
) -> Iterator[_Step]:
    """Yield the spans of a turn as MLflow's autologging of OpenAI's clients has them, in an agent's own span."""
    asked = [{"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": question}]
    told = {"messages": [{"role": "assistant", "content": answer}]}
    yield _Step("assistant", None, 0.0, {}, "AGENT", {"messages": asked[1:]}, None if fails else told)
    if calls:
        wanted = [
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for place, (name, args, _) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": wanted}
        yield _chat(asked, message, rng, slow)
        for name, args, response in calls:
            yield _Step(name, 0, rng.uniform(0.05, 1) * slow, {}, "TOOL", args, response)
        answers = [{"role": "tool", "tool_call_id": f"call_{place}", "content": json.dumps(call[2])} for place, call in enumerate(calls)]
        asked = [*asked, message, *answers]
    yield _chat(asked, None if fails else {"role": "assistant", "content": answer}, rng, slow)


def _chat(asked: Sequence[Json], message: Json | None, rng: random.Random, slow: float) -> _Step:
    attributes = {
        "mlflow.message.format": json.dumps("openai"),
        "mlflow.llm.model": json.dumps(_MODEL),
        **({"mlflow.chat.tokenUsage": json.dumps(_tokens(asked, message))} if message else {}),
    }
    outputs = {"model": _MODEL, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]} if message else None
    inputs = {"model": _MODEL, "messages": list(asked)}
    return _Step("Completions", 0, rng.uniform(0.4, 3) * slow, attributes, "CHAT_MODEL", inputs, outputs)


def _adk(
    question: str,
    answer: str,
    calls: Sequence[tuple[str, Json, Json]],
    rng: random.Random,
    slow: float,
    fails: bool,
    history: Sequence[Json],
    session: str,
) -> Iterator[_Step]:
    """Yield the spans of a turn as google-adk exports them to MLflow."""
    of = {"gen_ai.conversation.id": session, "gen_ai.agent.name": "travel"}
    yield _Step(
        "invoke_workflow travel", None, 0.0, {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "travel", **of}, ""
    )
    yield _Step("invoke_agent travel", 0, 0.0, {"gen_ai.operation.name": "invoke_agent", **of}, "AGENT")

    def model(asked: Sequence[Json], parts: Sequence[Json] | None) -> _Step:
        told = [{"role": "assistant", "parts": list(parts or ()), "finish_reason": "stop"}]
        usage = _tokens(asked, told)
        attributes = {
            "gen_ai.operation.name": "generate_content",
            "gen_ai.request.model": "gemini-2.5-flash",
            "gen_ai.provider.name": "gcp.gemini",
            "gcp.vertex.agent.invocation_id": f"e-{session}-{len(history) // 2}",
            "gen_ai.input.messages": json.dumps(asked),
            "gen_ai.system_instructions": json.dumps([{"content": _INSTRUCTIONS, "type": "text"}]),
            **of,
        }
        if parts is None:
            return _Step("generate_content gemini-2.5-flash", 1, rng.uniform(0.4, 3) * slow, attributes, "LLM", asked)
        attributes |= {
            "gen_ai.usage.input_tokens": usage["input_tokens"],
            "gen_ai.usage.output_tokens": usage["output_tokens"],
            "gen_ai.output.messages": json.dumps(told),
            "mlflow.chat.tokenUsage": json.dumps(usage),
        }
        return _Step("generate_content gemini-2.5-flash", 1, rng.uniform(0.4, 3) * slow, attributes, "LLM", asked, told)

    asked = [{"role": one["role"], "parts": [{"content": one["content"], "type": "text"}]} for one in history]
    asked.append({"role": "user", "parts": [{"content": question, "type": "text"}]})
    if calls:
        wanted = [{"id": f"c{place}", "name": call[0], "arguments": call[1], "type": "tool_call"} for place, call in enumerate(calls)]
        yield model(asked, wanted)
        for place, (name, args, response) in enumerate(calls):
            attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": f"c{place}", **of}
            yield _Step(f"execute_tool {name}", 1, rng.uniform(0.05, 1) * slow, attributes, "TOOL", args, response)
        answers = [{"id": f"c{place}", "response": call[2], "type": "tool_call_response"} for place, call in enumerate(calls)]
        asked = [*asked, {"role": "assistant", "parts": wanted}, {"role": "user", "parts": answers}]
    yield model(asked, None if fails else [{"content": answer, "type": "text"}])


def _spans(trace_id: str, steps: Iterator[_Step], start_ns: int, fails: bool) -> tuple[list[Json], Json, int]:
    """Return a trace's spans as MLflow has them, the tokens of all, and when it ended."""
    made: list[Json] = []
    now_ns = start_ns
    usage: dict[str, int] = {}
    listed = list(steps)
    for place, step in enumerate(listed):
        identity = hashlib.sha256(f"{trace_id}/{place}".encode()).digest()[:8]
        attributes = {"mlflow.traceRequestId": json.dumps(trace_id), "mlflow.spanType": json.dumps(step.kind or None), **step.attributes}
        attributes |= {
            f"mlflow.span{name}": json.dumps(value, ensure_ascii=False)
            for name, value in (("Inputs", step.inputs), ("Outputs", step.outputs))
            if value is not None
        }
        for name, count in json.loads(step.attributes.get("mlflow.chat.tokenUsage", "{}")).items():
            usage[name] = usage.get(name, 0) + count
        began_ns, now_ns = now_ns, now_ns + int(step.seconds * _S) + 50_000
        broken = fails and place in {0, len(listed) - 1}
        failure = {
            "name": "exception",
            "time_unix_nano": now_ns,
            "attributes": {"exception.type": "RateLimitError", "exception.message": "quota exceeded"},
        }
        made.append({
            "trace_id": _base64(trace_id),
            "span_id": base64.b64encode(identity).decode(),
            "parent_span_id": None if step.parent is None else made[step.parent]["span_id"],
            "name": step.name,
            "start_time_unix_nano": began_ns,
            "end_time_unix_nano": now_ns,
            "events": [failure] if broken else [],
            "status": {"code": "STATUS_CODE_ERROR", "message": "quota exceeded"} if broken else {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": attributes,
            "links": [],
        })  # fmt: skip
    for span, step in zip(made, listed, strict=True):
        if step.seconds == 0.0:  # around the others
            span["end_time_unix_nano"] = now_ns
    return made, usage, now_ns
