# Everything runs in .venv, made from any Python 3.11-3.14 with nothing installed: `make demo` and `make test` are all a newcomer needs.

PYTHON ?= $(firstword $(foreach v,python3.13 python3.12 python3.11 python3.14 python3 python,$(shell command -v $(v) >/dev/null 2>&1 && $(v) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null && echo $(v))))
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
ALONE := UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV= $(UV)
SYNC := UV_PROJECT_ENVIRONMENT=$(VENV) $(ALONE) sync --quiet --locked --inexact --extra adk
WORKERS ?= auto
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist worksteal
unexport PYTHONDONTWRITEBYTECODE
export PYTHONWARNDEFAULTENCODING =
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-ci near coverage mutants test-model fuzz env generated budget check fmt lint types imports docs shown site cost bench house lies matrix frameworks spark wheel screenshots clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## Evaluate a good and a regressed agent, promote one, be refused the other
	@$(BIN)/mlflow-adk-eval demo

test: $(VENV)/.dev ## Run the quick tests: all that a change is likely to break
	@echo "running the quick tests (about five minutes on two cores)"
	@$(PYTEST) -q -m "not slow and not browser" --randomly-seed=1 --randomly-dont-reorganize
	@echo "the quick tests passed; make test-all also runs the slow ones (servers, processes, browser, many examples)"

test-all: export HYPOTHESIS_PROFILE := full
test-ci: export HYPOTHESIS_PROFILE := ci
# Twice as many workers as there are cores: slow tests often wait for other processes. Three times as many took longer.
test-all test-ci docs: WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)
test-all: ## Run all tests
test-ci: ## Run all tests, but only some variants of slow ones, so that CI ends within half an hour
test-all test-ci: $(VENV)/.dev
	@echo "running $(if $(filter test-ci,$@),all tests with some of their slow variants,all tests) (about half an hour on two cores)"
	@$(PYTEST) -q --randomly-seed=1 --durations=40

coverage: $(VENV)/.dev ## Run the quick tests and say which lines they leave out
	@$(PYTEST) -q -m "not slow and not browser" --randomly-seed=1 --cov --cov-report=term:skip-covered

mutants: $(VENV)/.dev ## Put small mistakes into the gate, one at a time, and see whether the quick tests find them; SEED=, NUMBER= and SECONDS= choose
	@$(BIN)/python benchmarks/mutants.py $(if $(SEED),--seed $(SEED)) $(if $(NUMBER),--number $(NUMBER)) $(if $(SECONDS),--seconds $(SECONDS))

fuzz: export HYPOTHESIS_PROFILE := fuzz
fuzz: $(VENV)/.dev ## Run all tests in an order and with examples that are new each time
	@$(PYTEST) -q

test-model: export MLFLOW_ADK_EVAL_LOCAL_MODEL := 1
test-model: $(VENV)/.dev ## Judge with a small real model on this machine; needs node, npm and some minutes
	@$(BIN)/pytest -q -rs -p no:randomly tests/local_model

near: $(VENV)/.dev ## Run the tests that import what differs from HEAD, or from SINCE=COMMIT
	@tests="$$($(BIN)/python tests/near.py $(SINCE))"; if [ -n "$$tests" ]; then $(PYTEST) -q --randomly-seed=1 $$tests; else echo "no test imports what changed"; fi

env: $(VENV)/.dev ## Install what development needs into .venv, and nothing else

generated: $(VENV)/.dev ## Write what is generated: the policy's JSON Schema, the page of commands, llms.txt, the notebooks, the tables of criteria and of speeds
	$(BIN)/python docs/policy_schema.py
	$(BIN)/python docs/criteria_table.py
	$(BIN)/python -W ignore docs/observations.py
	$(BIN)/python docs/cli_page.py
	$(BIN)/python docs/notebooks.py
	$(BIN)/python docs/llms.py
	$(BIN)/python benchmarks/speed_table.py

# The site and the tutorials are not among these: tests/pages builds the one and follows the others.
check: $(VENV)/.dev ## All that CI runs
	@$(MAKE) -j2 --output-sync lint types imports budget wheel cost # each of them keeps one core busy
	@$(MAKE) docs test-ci

fmt: $(VENV)/.dev ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.dev ## Style, format, spelling, the glossary's words, and no private name of another package without a reason
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLC2701 .
	$(BIN)/ruff format --check .
	$(BIN)/codespell -D - -D docs/words.txt mlflow_adk_eval docs skills example_projects README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md

types: $(VENV)/.dev ## mypy and pyright, both strict, and the names and calls of tests
	$(BIN)/mypy
	$(BIN)/pyright --warnings
	$(BIN)/pyright --warnings -p tests

imports: $(VENV)/.dev ## The layers
	$(BIN)/lint-imports

docs: $(VENV)/.dev ## The blocks of README, pages, skills and docstrings, and what `make generated` writes
	$(BIN)/python docs/criteria_table.py --check
	$(BIN)/python docs/cli_page.py --check
	$(BIN)/python docs/notebooks.py --check
	$(BIN)/python docs/llms.py --check
	$(BIN)/python benchmarks/speed_table.py --check
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile -p no:randomly --ignore docs/tutorials README.md docs skills mlflow_adk_eval

shown: $(VENV)/.dev ## Run the blocks of PAGES and write what they print into them
	WRITE_SHOWN=1 $(BIN)/pytest -q -p no:randomly $(PAGES)

site: $(VENV)/.dev ## The documentation site, into site/; fails on a link that leads nowhere and on a page outside the navigation
	$(BIN)/sphinx-build -q -E -W --keep-going -j auto -d $(VENV)/.doctrees docs site

wheel: $(VENV)/.demo | $(UV) ## Build wheel and source distribution into dist/, check both, and use the wheel in an empty environment, without extras
	rm -rf dist $(VENV)/wheel
	$(ALONE) build --quiet --python $(BIN)/python
	$(ALONE) tool run --quiet twine check --strict dist/*
	$(ALONE) venv --quiet --python $(BIN)/python $(VENV)/wheel
	$(ALONE) pip install --quiet --python $(VENV)/wheel dist/*.whl
	cd $(VENV)/wheel && bin/python -I -W ignore -c "import mlflow_adk_eval as one; print('imported', one.__version__, 'from', one.__file__)"
	cd $(VENV)/wheel && bin/mlflow-adk-eval --help >help.txt && bin/mlflow-adk-eval validate lib/python*/site-packages/mlflow_adk_eval/_examples/home_automation/*.evalset.json
	cd $(VENV)/wheel && ../bin/mlflow-adk-eval demo --folder recorded >demo.txt
	cd $(VENV)/wheel && export MLFLOW_TRACKING_URI=sqlite:///recorded/mlflow.db && bin/mlflow-adk-eval verify home_automation && \
	bin/mlflow-adk-eval audit home_automation && { bin/mlflow-adk-eval gate latest \
	--policy lib/python*/site-packages/mlflow_adk_eval/_examples/home_automation/judged_gate.yaml; test $$? = 1; }

budget: $(VENV)/.dev ## Fail where the package, or a user's way through it, outgrows what benchmarks/house.json and benchmarks/journeys.py allow
	$(BIN)/python -W ignore benchmarks/house.py --check

cost: $(VENV)/.dev ## What a turn costs in calls and bytes, beside what is committed
	$(BIN)/python benchmarks/cost.py

bench: $(VENV)/.bench ## The benchmarks, beside google-adk and MLflow, and the table of docs/explanation/performance.md
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/speed_table.py

house: $(VENV)/.dev ## How the package is laid out, in numbers; BEFORE=COMMIT beside an earlier commit
	@$(BIN)/python benchmarks/house.py $(if $(BEFORE),--before $(BEFORE))

lies: $(VENV)/.dev ## Who passes agents that show nothing: ours and six other tools on planted lies; LIES= and TOOLS=ours choose
	@$(BIN)/python benchmarks/lies.py $(LIES) $(if $(TOOLS),--tools $(TOOLS))

matrix: $(VENV)/.dev ## The tests on the oldest and newest versions of Python, MLflow and google-adk; a set whose Python is missing is left out
	UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never $(BIN)/nox -- -n $(WORKERS)

frameworks: | $(UV) ## The examples with agents of other frameworks, each run and evaluated, in an environment that is made for it
	$(ALONE) run --quiet --locked --isolated --python $(BIN)/python --group test --group frameworks \
	  pytest -q -rs -p no:randomly tests/examples/test_example_frameworks.py

spark: | $(UV) ## The tests on Apache Spark, in an environment that is made for it; needs Java 17
	$(ALONE) run --quiet --locked --isolated --python $(BIN)/python --extra all --extra spark --group dev \
	  pytest -q -rs -p no:randomly tests/test_spark.py

screenshots: $(VENV)/.dev ## Take the pictures in docs/images with Debian's chromium
	$(BIN)/python docs/screenshots.py

$(UV):
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.14 found; set PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.demo: pyproject.toml uv.lock | $(UV)
	@echo "installing what the demo needs (a few minutes the first time)"
	@$(SYNC)
	@touch $@

$(VENV)/.dev: pyproject.toml uv.lock | $(UV)
	@echo "installing what the tests need (a few minutes the first time)"
	@$(SYNC) --extra all --group dev
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: pyproject.toml uv.lock | $(UV)
	@$(SYNC) --extra all --group dev --group bench
	@touch $@

clean: ## Remove what the other targets made
	rm -rf $(VENV) .nox demo site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* .import_linter_cache
