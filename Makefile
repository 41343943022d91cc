VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.peers
SITE := build/docs/.installed
PYTHON ?= python3
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: help demo examples test check test-oldest package-test bench faults faults-sites fuzz lock sbom advisories audit attack mutants
.PHONY: bench-scaling browser-test docs clean fed-bench fed-e2e models gpu-test

help:  ## this list; LOCKED=1 installs exactly what requirements.lock names
	@sed -n 's/^\([a-z0-9-]*\):.*  ## /\1: /p' $(MAKEFILE_LIST) | while IFS=: read -r name text; do printf '%-14s%s\n' "$$name" "$$text"; done

$(STAMP): pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	$(PIP) --require-hashes --no-deps -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e . -e papers
else
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[dev]' -e papers
endif
	touch $@

$(PEERS): $(STAMP)
	$(if $(LOCKED),,$(PIP) -c constraints.txt -e '.[dev,peers]' -e papers)
	touch $@

demo: $(STAMP)  ## a private diabetes predictor on the health survey that comes with Tacit
	$(BIN)/tacit demo

examples: $(PEERS)  ## tabular, images, text, a custom loop, Lightning, Hugging Face; each under a minute
	for name in tabular images text own_loop lightning_module hugging_face; do $(BIN)/python examples/$$name.py || exit 1; done

check: $(PEERS)  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check  ## style, types and the whole test suite
	$(BIN)/pytest -n auto --dist worksteal

# Old packages warn of what newer ones beside them are about to change; that is no fault of Tacit's.
OLDEST := build/oldest
test-oldest:  ## the suite with the oldest dependencies that are allowed, in an environment of its own (TESTS=tests/raw: a part)
	rm -rf $(OLDEST)
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-oldest.lock
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e papers
	$(OLDEST)/bin/pytest -n auto -W ignore::DeprecationWarning -W ignore::FutureWarning $(TESTS)

package-test:  ## wheel and sdist: the wheel where nothing else is, then each extra by itself (FULL=1: sharing nothing)
	$(PYTHON) -m tools.package_test $(if $(FULL),--full)

models: $(PEERS)  ## every family of models against autograd, with Opacus beside it; writes docs/results/models.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.families --write

gpu-test: $(PEERS)  ## for someone with a GPU: every method and model on it, with a report in build/ (ten minutes)
	$(BIN)/python -m tools.gpu_test

bench: $(PEERS)  ## the cost of a private step against plain SGD and Opacus
	$(BIN)/python -m benchmarks.step

bench-scaling: $(PEERS)  ## two threads and two processes against one, on a machine that nobody else uses (ten minutes)
	$(BIN)/python -m benchmarks.scaling

faults: $(STAMP)  ## 200 faults of fifteen kinds; writes docs/faults.md (ten minutes on two cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.faults --table docs/faults.md

lock: $(PEERS)  ## pin every dependency by version and hash, the newest and the oldest (needs the package index)
	$(BIN)/python -m tools.lock

sbom: $(STAMP)  ## the bill of materials, dist/sbom.cdx.json
	$(BIN)/python -m tools.sbom dist/sbom.cdx.json

advisories:  ## known vulnerabilities of the locked dependencies, from PyPI (needs a network)
	@$(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit
	@build/audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock || \
	  { echo "advisories: a vulnerability, or no network: pip-audit has to reach PyPI's advisory service (above)." >&2; exit 1; }

SECONDS ?= 60
TIMES ?= 10
faults-sites: $(STAMP)  ## 200 faults of federations; writes docs/faults-sites.md (ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.faults.sites --table docs/faults-sites.md

fuzz: $(STAMP)  ## hostile files and command lines: SECONDS of guided fuzzing, then TIMES as many cases as the suite
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	TACIT_FUZZ=$(TIMES) OMP_NUM_THREADS=1 $(BIN)/pytest tests/fuzz tests/raw/test_clipping.py tests/raw/test_sensitivity.py tests/data

mutants: $(PEERS)  ## plant privacy bugs one at a time and see that a test catches each (20 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants --jobs 2 --write

ATTACK_SECONDS ?= 600
attack: $(PEERS)  ## search for the example that moves a clipped sum furthest; writes docs/attack.md (ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.attack --seconds $(ATTACK_SECONDS) $(if $(SEED),--seed $(SEED)) --write

audit: $(STAMP)  ## measure epsilon from below for every shipped configuration; writes docs/audit
	OMP_NUM_THREADS=1 $(BIN)/tacit audit --out docs/audit
	$(BIN)/python -m tools.audit_page

browser-test: $(STAMP)  ## the report page in headless Chromium (Debian: apt-get install chromium chromium-driver)
	$(PIP) -c constraints.txt -e '.[dev,browser]' -e papers
	$(BIN)/pytest tests/report/test_browser.py

# The site is built from Markdown alone, so it needs the extra "docs" and neither Tacit nor PyTorch.
$(SITE): pyproject.toml
	$(PYTHON) -m venv build/docs
	$(PYTHON) -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print(*project['optional-dependencies']['docs'], sep='\n')" > build/docs/requirements.txt
	build/docs/bin/pip install --quiet --disable-pip-version-check -r build/docs/requirements.txt
	touch $@

docs: $(SITE)  ## the documentation site, build/site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict

clean:  ## remove what was made: environments, builds, caches
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis fuzz-failures

fed-bench: $(PEERS)  ## cost of local selection and of a simulated epoch (needs TACIT_DATA)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fedsel --million --json docs/results/fedsel/benchmark.json

fed-e2e: $(PEERS)  ## Flower with real processes: 20 rounds, killed nodes, killed servers (minutes)
	TACIT_FED_E2E=1 $(BIN)/pytest tests/federated/test_flower_processes.py tests/sites/test_flower.py tests/sites/test_three_machines.py
