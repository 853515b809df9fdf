"""What the first use costs in a fresh process: `python benchmarks/first_use.py [ROUNDS]` prints medians of the seconds up to each step."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

EXAMPLE = Path(__file__).parents[1] / "example_projects" / "home_automation"
STEPS = {
    "import mlflow_adk_eval": "import mlflow_adk_eval as adk_eval",
    "… and load an eval set of 11 cases": "eval_set = adk_eval.load_eval_set('home_automation.evalset.json')",
    "… and score it by two criteria": "adk_eval.score(eval_set, eval_set, {'criteria': {'tool_trajectory_avg_score': 1, 'response_match_score': 0.8}})",
}


def one_round() -> list[float]:
    """Return the seconds from the start of the first step to the end of each, in a process of its own."""
    timed = "".join(f"{code}\ntook.append(time.perf_counter() - started)\n" for code in STEPS.values())
    program = f"import json, time\ntook, started = [], time.perf_counter()\n{timed}print(json.dumps(took))"
    done = subprocess.run([sys.executable, "-c", program], cwd=EXAMPLE, capture_output=True, text=True, check=True)
    seconds: list[float] = json.loads(done.stdout)
    return seconds


if __name__ == "__main__":
    number = int(sys.argv[1]) if sys.argv[1:] else 5
    one_round()  # fills the caches of files
    rounds = [one_round() for _ in range(number)]
    for name, took in zip(STEPS, zip(*rounds, strict=True), strict=True):
        print(f"{name:<36} {median(took):.3f} s ({min(took):.3f}–{max(took):.3f})")
    print(f"median of {number} rounds, each in a fresh process (least–most); Python {sys.version.split()[0]}")
