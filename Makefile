# Two commands do everything, from nothing but Python: `make demo` and `make test`.
#
#   make demo              set up, and do the whole job on a generated data set: tags in, a detector, boxes and scores out
#   make test              set up, lint, type check, and test (a few minutes)
#   make test-all          the slow tests too
#   make test-readers      labels, by the readers of COCO, YOLO, Label Studio, CVAT and others, in an environment apart
#   make bench             the benchmarks: both sides in one process, medians and ratios (DATA=VOC2007: proposals on real photos)
#   TORCH=system           use the PyTorch this Python already has, instead of installing one
#   PYTHON=python3.12      build the environment with another Python
#   EXTRAS=                set up without the development tools

comma := ,
PYTHON ?= python3
TORCH ?= pip
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= [dev,lite]
READY := $(VENV)/.ready-$(TORCH)-$(subst $(comma),-,$(subst ],,$(subst [,,$(EXTRAS))))

.PHONY: setup test test-all test-readers lint demo bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt tools/setup_env.py
	$(PYTHON) tools/setup_env.py --venv $(VENV) --torch $(TORCH) --extras "$(EXTRAS)"
	@rm -f $(VENV)/.ready-* && touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread for each of pytest's processes: more only get in each other's way.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not slow"

test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

# Their requirements clash, so they are pinned one by one; see tools/readers.txt.
test-readers:
	$(PYTHON) tools/setup_env.py --venv $(VENV)-readers --torch $(TORCH) --extras "[dev]"
	$(VENV)-readers/bin/pip install --quiet --no-deps -r tools/readers.txt
	$(VENV)-readers/bin/pytest tests/export/test_label_readers.py -rs

bench: setup
	$(BIN)/python benchmarks/bench_cliques.py
	$(BIN)/python benchmarks/bench_pooling.py
	$(BIN)/python benchmarks/bench_evaluation.py
	$(BIN)/python benchmarks/bench_proposals.py $(if $(DATA),--data $(DATA) --split val --images 60)
	$(BIN)/python benchmarks/bench_trunk.py
	$(BIN)/python benchmarks/bench_linear.py
	$(BIN)/python benchmarks/bench_memory.py
	$(BIN)/python benchmarks/bench_learning.py
	$(BIN)/python benchmarks/bench_growth.py --plot docs/figures/growth.png
	$(BIN)/python benchmarks/profile_step.py --preset fast --repeats 15 --out benchmarks/results/step-fast.json
	$(BIN)/python benchmarks/profile_step.py --preset paper-vggf --repeats 3 --out benchmarks/results/step-paper-vggf.json

demo: setup
	$(BIN)/melm demo

clean:
	rm -rf $(VENV) $(VENV)-readers demo build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
