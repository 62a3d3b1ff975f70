# Two commands on a fresh machine: `make demo` and `make test`. They need Python 3.11 or later, make and git.
# Another interpreter has an environment of its own: `make test PYTHON=python3.13` installs into .venv-python3.13.
PYTHON ?= python3
# What pip installs first. The CPU build, for machines without a GPU: make demo TORCH='torch --index-url <PyTorch CPU index>'
TORCH ?= torch
VENV := .venv$(patsubst %,-%,$(filter-out python3,$(notdir $(PYTHON))))
BIN := $(VENV)/bin
OUT ?= out/demo
# Three workers on two cores: tests with processes wait for a third of their time. A file's tests run in one worker: they share its
# testbeds. Long files first, as tests/conftest.py sorts them.
WORKERS := $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10 -rsfE
SEEDS ?= 50000
# A module is compiled when it is first imported: to compile all 20,000 of all packages is half of the time of an installation.
PIP := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
unexport PYTHONDONTWRITEBYTECODE

.PHONY: dev demo newcomer test test-slow test-all lint types stubs tables docs man lock simulate wheel test-compose test-browser size clean

# The environment for changing the project, in .venv: what runs, tests and linters need.
dev: $(VENV)/.dev

demo: $(VENV)/.all
	$(BIN)/peer testbed --peers 8 --out $(OUT) --fresh --set run.options.warmup_rounds=8
	@echo "The page of the run: $(BIN)/peer watch $(OUT). Pictures: $(OUT)/report/*.png. As JSON: $(BIN)/peer report $(OUT) --json"

# README and the guides, followed in a clone of HEAD, in an empty environment. Prints the seconds to the first result, and of each page.
newcomer:
	PYTHON='$(PYTHON)' TORCH='$(TORCH)' $(PYTHON) tests/newcomer/follow.py

# All layers but the slow ones. The end of the output lists the slowest ten tests, and what was skipped and why.
test: $(VENV)/.test
	$(PYTEST)

# Planted bugs, and real processes under faults: minutes each. They wait for timeouts most of the time, so more of them run at once.
# Tests behind routers and in network namespaces need root.
test-slow: $(VENV)/.test
	tests/tools/install-programs iptables:iptables conntrack:conntrack ip:iproute2 tc:iproute2 ss:iproute2
	$(PYTEST) --numprocesses 5 -m 'slow or chaos'

test-all: test test-slow test-browser test-compose

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --quiet --offline .github

types: $(VENV)/.dev
	$(BIN)/mypy

# The generated gRPC code is what proto/peer/v1/peer.proto gives.
stubs: $(VENV)/.dev
	$(BIN)/python proto/generate.py --check

# The tables in docs that come from the code (counters, fields of records, metrics, states) and from benchmarks/results.
tables: $(VENV)/.dev
	$(BIN)/python docs/generate.py

# uv.lock for the requirements of pyproject.toml, and constraints.txt from it. It needs the program uv, and downloads metadata only. What
# the requirements still allow keeps its version: make lock UPGRADE=--upgrade.
EXPORT := uv export --quiet --frozen --all-extras --all-groups --no-emit-project --no-annotate --no-header --no-hashes
lock:
	uv lock $(UPGRADE)
	(sed '/^[^#]/d' constraints.txt; $(EXPORT) | sed 's/ *;.*//') > constraints.new
	mv constraints.new constraints.txt

# The page of `man`, from what --help prints: man -l out/peer.1
man: $(VENV)/.all
	$(BIN)/python docs/man.py out/peer.1

# The site in out/docs. A link or reference that leads nowhere is an error.
docs: $(VENV)/.test
	$(BIN)/sphinx-build -W --keep-going -q -c docs . out/docs

simulate: $(VENV)/.test
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

# Source package and wheel in dist/, checked; the wheel installed without extras into an empty environment outside the repository, and
# run there. Prints the size of the environment.
wheel:
	PYTHON='$(PYTHON)' TORCH='$(TORCH)' .ci/wheel

# The first test starts the container engine and builds the image.
test-compose: $(VENV)/.test
	$(BIN)/pytest tests/compose -m compose --timeout 3600 --durations=10 -rsfE

# In Chromium. Without it, each test is skipped with the reason.
test-browser: $(VENV)/.test
	tests/tools/install-programs chromium:chromium chromedriver:chromium-driver
	$(BIN)/pytest tests/browser -m browser -rs

# torch first and separately: its CPU build satisfies torchvision, which would otherwise install gigabytes of CUDA libraries.
$(VENV)/.torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1' # which knows dependency groups
	$(PIP) $(TORCH)
	touch $@

# An extra and two dependency groups of pyproject.toml. Each has all of the one before it, so one run of pip is enough.
$(VENV)/.all: WHAT = all
$(VENV)/.test: WHAT = test all
$(VENV)/.dev: WHAT = dev test all
$(VENV)/.all $(VENV)/.test $(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.torch
	PYTHONWARNINGS='ignore:Editable installation' $(PIP) --editable .[all] $(addprefix --group ,$(filter-out all,$(firstword $(WHAT))))
	touch $(addprefix $(VENV)/.,$(WHAT))

# Lines and tokens of each folder, and other counts; with the difference to BASE, a commit. Default: the last tag, or origin/main.
size: $(VENV)/.dev
	$(BIN)/python .ci/size.py $(BASE)

clean:
	rm -rf .venv .venv-* out build dist *.egg-info
