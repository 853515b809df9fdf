"""A pipeline for Vertex AI or Kubeflow that evaluates a version of an agent, asks the gate, and sets the alias if it passes.

``uv run --no-project --with kfp python vertex_pipeline.py pipeline.yaml`` compiles it. Each step is a container of the Dockerfile beside this file;
a step that exits with anything but 0 fails, and those after it do not start.
"""

import sys  # without `from __future__ import annotations`: kfp reads the types themselves

from kfp import compiler, dsl

EVALUATION = "europe-docker.pkg.dev/my-project/agents/agent-evaluation:1.0.0"
GATE = "europe-docker.pkg.dev/my-project/agents/agent-gate:1.0.0"
"""Without the candidate's code, and with the policy in it."""


@dsl.container_component
def evaluate(agent: str, eval_set: str, model: str, version: str, tracking_uri: str) -> dsl.ContainerSpec:
    """Evaluate the version; missed thresholds are for the policy to judge, so exit codes 1 and 2 go on."""
    command = (
        'mlflow-adk-eval run "$1" "$2" --agent-version "models:/$3/$4" --tracking-uri "$5" || { code=$?; test $code -le 2 || exit $code; }'
    )
    return dsl.ContainerSpec(
        image=EVALUATION, command=["sh", "-ec", command, "evaluate"], args=[agent, eval_set, model, version, tracking_uri]
    )


@dsl.container_component
def gate(model: str, version: str, policy: str, tracking_uri: str) -> dsl.ContainerSpec:
    """Decide, and change nothing."""
    decide = ["promote", model, "--version", version, "--run-id", "latest", "--policy", policy, "--tracking-uri", tracking_uri, "--dry-run"]
    return dsl.ContainerSpec(image=GATE, command=["mlflow-adk-eval"], args=decide)


@dsl.container_component
def promote(model: str, version: str, policy: str, tracking_uri: str) -> dsl.ContainerSpec:
    """Decide again, and set the alias."""
    decide = ["promote", model, "--version", version, "--run-id", "latest", "--policy", policy, "--tracking-uri", tracking_uri]
    return dsl.ContainerSpec(image=GATE, command=["mlflow-adk-eval"], args=decide)


@dsl.pipeline(name="gate-agent")
def gate_agent(
    model: str,
    version: str,
    tracking_uri: str,
    agent: str = "/agent/home_automation_agent",
    eval_set: str = "/agent/home_automation.evalset.json",
    policy: str = "/policy/gate.yaml",
) -> None:
    """Run the steps in order, never from a cache: an agent's answers change.

    `tracking_uri` must hold no password, since everybody who sees the pipeline's run sees its parameters.
    """
    evaluated = evaluate(agent=agent, eval_set=eval_set, model=model, version=version, tracking_uri=tracking_uri)
    decided = gate(model=model, version=version, policy=policy, tracking_uri=tracking_uri).after(evaluated)
    promoted = promote(model=model, version=version, policy=policy, tracking_uri=tracking_uri).after(decided)
    for step in (evaluated, decided, promoted):
        step.set_caching_options(enable_caching=False)


if __name__ == "__main__":
    compiler.Compiler().compile(gate_agent, package_path=sys.argv[1])
