"""Prints the tests that import what changed: `python tests/near.py [COMMIT]`, for `make near`.

Changed is what git says differs from COMMIT (default: HEAD), files that it does not know yet included. A test is near if it is changed, imports
a changed module of the package or of the tests, directly or through helpers below `tests`, or stands below the folder that mirrors it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "mlflow_adk_eval"


def changed(commit: str) -> set[str]:
    """Return the files that differ from a commit, relative to the checkout."""
    commands = (["git", "diff", "--name-only", commit], ["git", "ls-files", "--others", "--exclude-standard"])
    listed = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for command in commands)
    return {line for text in listed for line in text.splitlines() if (ROOT / line).exists()}


def homes() -> dict[str, str]:
    """Return the module of each public name, which is imported when the name is first used."""
    tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text("utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: f"{node.module}" for node in imports for alias in node.names}


def uses(file: Path, public: dict[str, str]) -> set[str]:
    """Return the modules that a test or helper imports, and those of the public names that it takes from the package."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Import(names):
                modules |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                modules |= {module, *(f"{module}.{alias.name}" for alias in names)}
                modules |= {public[alias.name] for alias in names if module == PACKAGE and alias.name in public}
            case ast.Attribute(ast.Name("adk_eval" | "mlflow_adk_eval"), name) if name in public:
                modules.add(public[name])
            case _:
                pass
    return modules


def near(files: set[str]) -> list[str]:
    """Return the test files that are near to changed files."""
    modules = {file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files if file.endswith(".py")}
    mirrored = {f"tests/{'/'.join(file.split('/')[1:-1])}/" for file in files if file.startswith(f"{PACKAGE}/") and file.count("/") > 1}
    public = homes()
    imports = {path.relative_to(ROOT).as_posix(): uses(path, public) for path in sorted((ROOT / "tests").rglob("*.py"))}
    while True:
        reached = {name.removesuffix(".py").replace("/", ".") for name, used in imports.items() if used & modules} - modules
        helpers = {name for name in reached if not name.rpartition(".")[2].startswith("test_")}
        modules |= reached
        if not helpers:
            break
    tests = (name for name in imports if name.rpartition("/")[2].startswith("test_"))
    return [
        name
        for name in tests
        if name.removesuffix(".py").replace("/", ".") in modules or any(name.startswith(folder) for folder in mirrored)
    ]


if __name__ == "__main__":
    sys.stdout.writelines(f"{name}\n" for name in near(changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD")))
