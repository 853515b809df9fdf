"""The viewer as an application: which address shows what, for this machine's own browser and nobody else's page.

Each page is read and rendered in a thread, one at a time: what a run holds is read lazily, by readers that are not made for several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from mlflow_adk_eval.errors import AdkEvalError, UsageError
from mlflow_adk_eval.evalset.adk_form import for_adk
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.redact import command, redacted, secrets_of
from mlflow_adk_eval.report.html.page import Texts, source
from mlflow_adk_eval.runs.listed import RunRow, runs_before
from mlflow_adk_eval.store.reaching import reaching_mlflow
from mlflow_adk_eval.text import counted
from mlflow_adk_eval.viewer import one_run, pages
from mlflow_adk_eval.viewer.comparing import MOST_AT_ONCE, MOST_COMPARED, compare_page, reading_page
from mlflow_adk_eval.viewer.labelling import label_page, labelled, labelled_unit
from mlflow_adk_eval.viewer.listing import runs_page
from mlflow_adk_eval.viewer.production import production_page, sample_of, traces_of
from mlflow_adk_eval.viewer.query import BASE, BASELINE, Query, link
from mlflow_adk_eval.viewer.registry import Registry
from mlflow_adk_eval.viewer.store import OpenRun, RunStore
from mlflow_adk_eval.viewer.trend import trend_page

HOSTS = ("127.0.0.1", "localhost")
"""By these names a browser may call the viewer. Any other would be a page elsewhere that had its name point here."""
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_LONGEST_FORM = 100_000


Page = Callable[[Request], Response]


class Viewer:
    """The pages of one store."""

    def __init__(self, store: RunStore, mlflow_url: str | None, labeller: str) -> None:
        """Take what is shown, as `application` does."""
        self.store, self._mlflow_url, self._labeller = store, mlflow_url, labeller
        self._lock = threading.Lock()
        self._secrets = secrets_of()

    def alone(self, page: Page) -> Page:
        """Return what makes a page while no other is made, and of an error a page that says it."""

        def made(request: Request) -> Response:
            with self._lock:
                try:
                    return page(request)
                except AdkEvalError as error:
                    return self.problem(request, error)

        return made

    def rendered(self, request: Request, template: str, title: str, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page."""
        query = query_of(request)
        texts = Texts(self._secrets)
        given = {"t": texts, "query": query, "title": texts.line(title), "where": self.store.experiment or "", "run": None}
        given |= {"chosen": self.baseline(), "judges_changed": self.store.changes, **context}
        html = pages.templates().get_template(template).render(given)
        return HTMLResponse(html.encode("utf-8", "replace"), status)

    def baseline(self) -> RunRow | None:
        """Return the run that the reader chose to compare others with; ``None`` if none is chosen, or it is not listed."""
        chosen = BASELINE.get()
        with suppress(AdkEvalError):  # a page that says that MLflow does not answer cannot ask it
            return next((row for row in self.store.rows(fresh=False) if row.run_id == chosen), None) if chosen else None
        return None

    def problem(self, request: Request, error: AdkEvalError) -> Response:
        """Return the page that says what went wrong."""
        status, title = (404, "Not found") if isinstance(error, UsageError) else (502, "Page unavailable")
        return self.rendered(request, "problem.html.j2", title, status, message=str(error))

    def mlflow(self, row: RunRow, tab: str = "") -> str:
        """Return where MLflow shows a run; empty where that is not known."""
        base = self._mlflow_url
        return "" if base is None else f"{base.rstrip('/')}/#/experiments/{row.experiment_id}/runs/{row.run_id}{tab}"

    def runs(self, request: Request) -> Response:
        """Show the list of runs."""
        rows = self.store.rows()
        context = runs_page(rows, query_of(request), self.store.registry(), self.baseline())
        return self.rendered(request, "runs.html.j2", "Runs", **context)

    def run(self, request: Request) -> Response:
        """Show one run."""
        verify = query_of(request).get("verify")
        query = Query(path_of(request.scope), [pair for pair in query_of(request).params if pair[0] != "verify"])
        if not verify and "hx-request" not in request.headers:
            begun = self.store.first_look(request.path_params["run_id"], one_run.FIRST_CASES)
            if begun is not None:
                row, look = begun
                context = one_run.first_look_page(look, query, Texts(self._secrets))
                return self.rendered(request, "first_look.html.j2", row.name, row=row, mlflow=self.mlflow(row), **context)
        opened = self._opened(request, again=verify == "again")
        baseline = self.baseline() if query.get("view") == "matrix" else None
        against = self.store.open(baseline.run_id) if baseline and baseline.run_id != opened.row.run_id else None
        context = one_run.run_page(opened, query, Texts(self._secrets), against)
        return self._of_run(request, "run.html.j2", opened, sample=sample_of(opened.sample), **context)

    def case(self, request: Request) -> Response:
        """Show one case run."""
        opened, query = self._opened(request), query_of(request)
        place = opened.place(query.get("eval_id"), query.number("run_index", 0))
        return self._of_run(request, "one_case.html.j2", opened, **pages.case_page(opened, place, query, Texts(self._secrets)))

    def trend(self, request: Request) -> Response:
        """Show the criteria over runs. Of production, a run says those of a sample, which are no trend."""
        rows = [row for row in self.store.rows() if not row.production]
        return self.rendered(request, "trend.html.j2", "Trend", **trend_page(rows, query_of(request)))

    def production(self, request: Request) -> Response:
        """Show production over time."""
        context = production_page(self.store.rows(), query_of(request), self.store.registry())
        return self.rendered(request, "production.html.j2", "Production", **context)

    def save(self, request: Request) -> Response:
        """Send a case as a file."""
        opened, query = self._opened(request), query_of(request)
        saved = pages.case_file(opened, opened.place(query.get("eval_id"), query.number("run_index", 0)), query)
        name = {"content-disposition": f'attachment; filename="{saved.eval_set_id}.evalset.json"'}
        return Response(
            redacted(dumps(for_adk(saved, saved.eval_set_id)), self._secrets).encode("utf-8", "replace"),
            media_type="application/json",
            headers=name,
        )

    def compare(self, request: Request) -> Response:
        """Show runs side by side."""
        query = query_of(request)
        run_ids = list(dict.fromkeys(query.all("run")))
        listed = {row.run_id: row for row in self.store.rows(fresh=False)}
        if query.get("order") == "started":
            latest = datetime.max.replace(tzinfo=UTC)
            run_ids.sort(key=lambda one: (one != BASELINE.get(), listed[one].started if one in listed else latest))
        if not 1 < len(run_ids) <= MOST_COMPARED:
            message = f"{counted(len(run_ids), 'run')} selected; select 2 to {MOST_COMPARED} on the Runs page."
            return self.rendered(request, "problem.html.j2", "Compare", 400, message=message)
        rest = [pair for pair in query.params if pair[0] not in ("run", "order", "read")]
        asked = Query(query.path, [*(("run", run_id) for run_id in run_ids), *rest])
        # Large runs are read one a request, so that the page says how far that is.
        step, texts = query.number("read", 0), Texts(self._secrets)
        if 0 < step <= len(run_ids):
            self.store.open(run_ids[step - 1])
        unread = sum(listed[one].cases for one in run_ids if one in listed and not self.store.is_open(one))
        if 0 < step <= len(run_ids) or (not step and unread > MOST_AT_ONCE and "hx-request" not in request.headers):
            context = reading_page([(one, listed.get(one)) for one in run_ids], step + 1, asked, texts)
            return self.rendered(request, "comparing.html.j2", "Compare", **context)
        opened = [self.store.open(run_id) for run_id in run_ids]
        comparisons = [self.store.compared(run_ids[0], run_id) for run_id in run_ids[1:]]
        return self.rendered(request, "compare.html.j2", "Compare", **compare_page(opened, comparisons, asked, texts))

    def label(self, request: Request) -> Response:
        """Show the next cell to label."""
        opened = self._opened(request)
        judged, labelling = self.store.labelling(opened.row.run_id, self._labeller)
        context = label_page(opened, judged, labelling, query_of(request), Texts(self._secrets))
        then = command("calibrate", opened.row.run_id, "-o", "calibration.json", tracking_uri=self.store.tracking_uri)
        return self._of_run(request, "label.html.j2", opened, labeller=self._labeller, command=then, **context)

    async def take_label(self, request: Request) -> Response:
        """Keep a label, and show the next cell."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_FORM:
                return PlainTextResponse("The form is too large.", 413)
        request.state.form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        return await run_in_threadpool(self.alone(self._keep_label), request)

    def _keep_label(self, request: Request) -> Response:
        form, (_, labelling) = request.state.form, self.store.labelling(self._opened(request).row.run_id, self._labeller)
        if form.get("undo"):
            unit = labelled_unit(labelling, form["undo"])
            with reaching_mlflow("The label could not be removed"):
                labelling.undo(unit)
            return RedirectResponse(query_of(request)(last=""), 303)
        unit, passed, reason = labelled(labelling, form)
        with reaching_mlflow("The label could not be saved"):
            labelling.add(unit, passed=passed, reason=reason)
        return RedirectResponse(query_of(request)(last=form["cell"]), 303)

    def _opened(self, request: Request, *, again: bool = False) -> OpenRun:
        return self.store.open(request.path_params["run_id"], again=again)

    def _of_run(self, request: Request, template: str, opened: OpenRun, **context: Any) -> Response:
        row = opened.row
        rows = self.store.rows(fresh=False)  # latest first
        rows = [one for one in rows if not (one.production or row.production)]  # of which no two have a case in common
        registry = self.store.registry() or Registry()
        champion, baseline = registry.champion_of(row, rows), self.baseline()
        named = [(f"the {holder}", one) for holder, one in ([champion] if champion else [])]
        named += [("the previous run", one) for one in islice(runs_before(row, rows), 1)]
        named += [("the last run that passed", one) for one in islice(runs_before(row, rows, passed=True), 1)]
        named += [(f"the baseline, {baseline.name}", baseline)] if baseline else []
        # A run that is several of these is offered once.
        names = {one.run_id: name for name, one in reversed(named) if one.run_id != row.run_id}
        against = [(name, other) for other, name in reversed(names.items())]
        chosen = [("Use as baseline", query_of(request)(baseline=row.run_id))] if row.run_id != BASELINE.get() else []
        given: dict[str, Any] = {
            "run": opened,
            "problems": opened.run.problems,
            "traces": lambda case: traces_of(case, self.mlflow(row).rpartition("/runs/")[0]) if row.production else [],
            "mlflow": self.mlflow(row),
            "comparisons": [
                *((f"Compare with {name}", link("/compare", ("run", one), ("run", row.run_id))) for name, one in against),
                *chosen,
            ],
            "bases": [(name, query_of(request)(baseline=other)) for name, other in against],
            "held": registry.held_by(row),
            "noted": [(note, self.mlflow(row, f"/artifacts/{note.record}")) for note in registry.noted.get(row.run_id, ())],
            "label_here": link(f"/runs/{row.run_id}/label") if self._labeller else "",
            **context,
        }
        return self.rendered(request, template, row.name, **given)


def query_of(request: Request) -> Query:
    """Return what was asked for, without the baseline, which every address has anyway."""
    return Query(path_of(request.scope), [pair for pair in request.query_params.multi_items() if pair[0] != "baseline"])


def path_of(scope: Scope) -> str:
    """Return the path of a request below that at which the viewer is served."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path or "/"


class _SameOrigin:
    """Refuse what another page has a browser write, and give every answer the headers that keep pages apart."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = urlsplit(headers.get(b"origin", "")).netloc
        app = self._app
        site = headers.get(b"sec-fetch-site", "same-origin")
        if scope["method"] not in ("GET", "HEAD") and (origin != headers.get(b"host", "") or site != "same-origin"):
            app = PlainTextResponse("This request did not come from a viewer page.", 403)

        async def safe(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
                if not path_of(scope).startswith("/static/"):
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        BASE.set(scope.get("root_path", ""))
        BASELINE.set(dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("baseline", ""))
        await app(scope, receive, safe)


def application(store: RunStore, *, mlflow_url: str | None = None, labeller: str = "", hosts: Sequence[str] = HOSTS) -> Starlette:
    """Return the application.

    Args:
        store: what is shown.
        mlflow_url: where MLflow's own pages are; ``None``: nowhere.
        labeller: who labels; empty: nobody, and nothing can be written.
        hosts: by which names a browser may call it.
    """
    viewer = Viewer(store, mlflow_url, labeller)

    async def styles(_: Request) -> Response:
        """Answer those of the HTML reports, whose components the pages are made of."""
        return PlainTextResponse(source("report.css") + source("compare.css"), media_type="text/css")

    shown: dict[str, Page] = {
        "/": viewer.runs,
        "/runs/{run_id}": viewer.run,
        "/runs/{run_id}/case": viewer.case,
        "/runs/{run_id}/case.evalset.json": viewer.save,
        "/compare": viewer.compare,
        "/trend": viewer.trend,
        "/production": viewer.production,
    }
    routes: list[BaseRoute] = [Route(path, viewer.alone(page)) for path, page in shown.items()]
    routes += [Route("/components.css", styles), Mount("/static", StaticFiles(packages=[("mlflow_adk_eval.viewer", "static")]))]
    if labeller:
        path = "/runs/{run_id}/label"
        routes += [Route(path, viewer.alone(viewer.label)), Route(path, viewer.take_label, methods=["POST"])]

    async def missing(request: Request, _: Exception) -> Response:
        return viewer.problem(request, UsageError(f"There is no page {path_of(request.scope)}."))

    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {404: missing}
    middleware = [Middleware(_SameOrigin), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
