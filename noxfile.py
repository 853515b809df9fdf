"""The quick tests on the oldest and the newest versions that the package supports: ``nox``, or ``make matrix``.

Each set of versions leaves what came of it in ``.nox/matrix``; the session ``table`` prints that and puts it into
docs/reference/compatibility.md. A set whose Python this machine lacks is left out: `.github/workflows/matrix.yml` runs all of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import nox

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["matrix", "table"]

HERE = Path(__file__).parent
RESULTS = HERE / ".nox" / "matrix"
PAGE = HERE / "docs" / "reference" / "compatibility.md"
PROJECT: dict[str, Any] = nox.project.load_toml("pyproject.toml")
SHOWN = ("mlflow", "google-adk", "google-genai")
ALL = PROJECT["project"]["optional-dependencies"]["all"][0].partition("[")[2].rstrip("]").split(",")
PINNING = {"adk", "vertex"}
"""Extras whose packages refuse google-genai 3."""
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONWARNDEFAULTENCODING": ""}
SUITE = ("tests", "-m", "not slow and not browser", "--ignore=tests/pages/test_pages.py", "--ignore=tests/benchmarks")
EXPECTED = (
    # google-api-core says so of Python 3.11 by the date, whatever is tested.
    *("-W", "ignore:You are using a Python version:FutureWarning"),
    # Old google-genai's client, when nothing refers to it and no event loop runs.
    *("-W", "ignore:coroutine 'BaseApiClient.aclose' was never awaited:RuntimeWarning"),
)


def oldest(package: str) -> str:
    """Return the requirement of exactly the oldest version that pyproject.toml allows."""
    listed = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["adk"]]
    (bound,) = (found[1] for one in listed if (found := re.match(rf"{package}>=([\d.]+)", one)))
    return f"{package}=={bound}"


def main_branch(name: str, repository: str, folder: str = "") -> str:
    """Return the requirement of what a project has not released yet."""
    return f"{name} @ git+https://github.com/{repository}" + (f"#subdirectory={folder}" if folder else "")


@dataclass(frozen=True)
class Cell:
    """One set of versions."""

    python: str
    requirements: tuple[str, ...] = ()
    wheel: str = ""
    """A distribution to put in the place of the one that was resolved, since its own requirements are not in every package index."""
    resolution: str = "highest"
    extras: str = "[all]"


@dataclass(frozen=True)
class Result:
    """What came of the suite with one set of versions."""

    cell: str
    python: str
    versions: dict[str, str]
    passed: int
    skipped: int
    failed: int
    seconds: int
    commit: str

    def __str__(self) -> str:
        """Say it in a line."""
        found = f"{self.passed} passed, {self.skipped} skipped, {self.failed} failed in {self.seconds} s"
        return f"{self.cell}: {found} (Python {self.python}, {', '.join(map(' '.join, self.versions.items()))}; {self.commit})"

    def row(self) -> str:
        """Return it as a row of the table."""
        versions = (self.python, *(self.versions.get(name) or "–" for name in SHOWN))
        numbers = (f"{number:,}" for number in (self.passed, self.skipped, self.failed))
        return f"| {' | '.join((self.cell, *versions, *numbers, self.commit))} |"


CELLS = {
    "Oldest of everything": Cell("3.11", (oldest("google-adk"),), resolution="lowest-direct"),
    "Oldest MLflow, newest google-adk 1": Cell("3.12", (oldest("mlflow"), "google-adk<2")),
    "Newest of everything": Cell("3.13", ("google-adk>=2",), wheel="mlflow==3.18.0"),
    "google-genai 3": Cell("3.13", ("google-genai>=3",), extras=f"[{','.join(extra for extra in ALL if extra not in PINNING)}]"),
    "No extras": Cell("3.12", extras=""),
    "Python 3.14": Cell("3.14", ("google-adk>=2",)),
}
UNRELEASED = {
    "google-adk, main branch": Cell("3.13", (main_branch("google-adk", "google/adk-python"),)),
    "MLflow, main branch": Cell(
        "3.13",
        (
            main_branch("mlflow", "mlflow/mlflow"),
            main_branch("mlflow-skinny", "mlflow/mlflow", "libs/skinny"),
            main_branch("mlflow-tracing", "mlflow/mlflow", "libs/tracing"),
        ),
    ),
}


@nox.session
@nox.parametrize(("python", "cell"), [nox.param(cell.python, name, id=name) for name, cell in CELLS.items()])
def matrix(session: nox.Session, cell: str) -> None:
    """Run the quick tests but benchmarks and documents; what follows -- goes to pytest in the place of -n auto."""
    tested(session, cell, CELLS[cell])


@nox.session
@nox.parametrize(("python", "cell"), [nox.param(cell.python, name, id=name) for name, cell in UNRELEASED.items()])
def unreleased(session: nox.Session, cell: str) -> None:
    """Do the same with what google-adk and MLflow have not released yet."""
    tested(session, cell, UNRELEASED[cell])


def tested(session: nox.Session, name: str, cell: Cell) -> None:
    """Run the tests with a set of versions, and keep what came of them."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    install(session, cell)
    junit = RESULTS / f"{name}.xml"
    given = session.posargs or ("-n", "auto")
    ran = session.run("pytest", "-q", *EXPECTED, f"--junitxml={junit}", *SUITE, *given, env=QUIET, success_codes=[0, 1])
    if ran is None:
        return  # nox was asked to install only
    result = result_of(session, name, junit)
    (RESULTS / f"{name}.json").write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
    session.log(str(result))
    if result.failed:
        session.error(f"{result.failed} tests failed with {name}")


def install(session: nox.Session, cell: Cell) -> None:
    """Install the package as users do, and beside it what the tests need, at its newest."""
    session.install("--resolution", cell.resolution, "-e", f".{cell.extras}", *cell.requirements)
    held = session.run_install("uv", "pip", "freeze", "--quiet", "--exclude-editable", external=True, silent=True)
    constraints = Path(session.virtualenv.location) / "held.txt"
    constraints.write_text(str(held), encoding="utf-8")
    session.install("--constraint", str(constraints), *nox.project.dependency_groups(PROJECT, "test"))
    if cell.wheel:
        session.run_install("uv", "pip", "uninstall", "mlflow", "mlflow-skinny", "mlflow-tracing", external=True, silent=True)
        session.install("--no-deps", cell.wheel)


def result_of(session: nox.Session, cell: str, junit: Path) -> Result:
    """Return what pytest wrote, with the versions that were there."""
    ask = "import json, platform, sys\nfrom importlib.metadata import distributions\n"
    ask += "there = {one.name: one.version for one in distributions()}\n"
    ask += "print(json.dumps([platform.python_version(), {name: there.get(name, '') for name in sys.argv[1:]}]))"
    python, versions = json.loads(str(session.run("python", "-c", ask, *SHOWN, silent=True)))
    commit = str(session.run("git", "describe", "--always", "--dirty=+", "--exclude=*", external=True, silent=True)).strip()
    suite = ET.parse(junit).find("testsuite")  # noqa: S314 - pytest has just written it
    if suite is None:
        session.error(f"pytest wrote no result for {cell}")
    total, skipped, failed, errors = (int(suite.attrib[name]) for name in ("tests", "skipped", "failures", "errors"))
    return Result(
        cell=cell,
        python=python,
        versions=versions,
        passed=total - skipped - failed - errors,
        skipped=skipped,
        failed=failed + errors,
        seconds=round(float(suite.attrib["time"])),
        commit=commit,
    )


@nox.session(venv_backend="none")
def table(session: nox.Session) -> None:
    """Put what is in .nox/matrix into docs/reference/compatibility.md, and print it."""
    names = ("Set", "Python", *SHOWN, "Passed", "Skipped", "Failed", "Commit")
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join('---' for _ in names)}|"]
    for name, cell in CELLS.items():
        file = RESULTS / f"{name}.json"
        missing = f"| {name} | {cell.python} | – | – | – | not run | – | – | – |"
        lines.append(Result(**json.loads(file.read_text(encoding="utf-8"))).row() if file.exists() else missing)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- matrix -->\n")
    after = rest.partition("<!-- end of matrix -->")[2]
    PAGE.write_text("\n".join([f"{before}<!-- matrix -->", *lines, f"<!-- end of matrix -->{after}"]), encoding="utf-8")
    session.log("\n" + "\n".join(lines))
