# Two commands on a fresh machine: `make demo` and `make test`. Needs Python 3.11 or later, make and git.
PYTHON ?= python3
# What pip installs first; without a GPU, the CPU build: make demo TORCH='torch --index-url <PyTorch CPU index>'
TORCH ?= torch
VENV := .venv
BIN := $(VENV)/bin
OUT ?= out/demo
SEEDS ?= 50000

.PHONY: demo test lint check-proto simulate test-compose clean

demo: $(VENV)/.run
	$(BIN)/peer testbed --peers 8 --out $(OUT) --fresh --set run.options.warmup_rounds=8
	@echo "Look at $(OUT)/report/*.png, and try: $(BIN)/peer report $(OUT) --json"

test: $(VENV)/.test
	$(BIN)/pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-proto: $(VENV)/.dev
	$(BIN)/python proto/generate.py --check

simulate: $(VENV)/.test
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

# The first test waits for the engine and the image, which are made here.
test-compose: $(VENV)/.test
	$(BIN)/pytest tests/compose -m compose --timeout 900 -rs

# torch comes first and alone: its CPU build satisfies torchvision, whose own choice would be gigabytes of CUDA libraries.
$(VENV)/.run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .[test]
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .[dev]
	touch $@

clean:
	rm -rf $(VENV) out build dist *.egg-info
