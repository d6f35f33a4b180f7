# Each target does its own set-up; nothing is installed outside the folders named here.
PYTHON ?= python3
VENV ?= .venv
GENERATE_VENV ?= .venv-generate
CONFORMANCE_VENV ?= .venv-conformance
# Release of CUDA that gpu-test installs: 12 or 13, as the machine's driver has it
CUDA ?= 13
# An interpreter that has CuPy and pytest already, for gpu-test and gpu-bench; nothing is installed then
GPU_PYTHON ?=
# Further arguments of pytest: make test ARGS="tests/plans -k adjoint"
ARGS ?=
# Which tests make test runs, as pytest's -m has it; make full and CI run all
MARKS ?= not slow and not heavy
# What `make image` builds: cpu, cuda12 or cuda13; and on which base, by default the Dockerfile's
TARGET ?= cpu
BASE ?=
# How long `make fuzz` looks
SECONDS ?= 600
# The schema that must not break, and what it is compared with. Only a release writes a new image:
#   buf build proto --exclude-source-info --output proto/released/vMAJOR.MINOR.binpb
PROTO ?= proto
RELEASED := proto/released/v0.2.binpb
# Processes that run the tests, which wait half of their time
JOBS ?= 4

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# Where it is set, every server that tests start compiles the sources anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PINS := constraints/pinned.txt
PIP := -m pip --quiet --disable-pip-version-check
ON_GPU := PYTHONPATH=$(CURDIR)/server:$(CURDIR)/client:$(CURDIR)/tests$(if $(PYTHONPATH),:$(PYTHONPATH)) $(or $(GPU_PYTHON),$(BIN)/python)

.PHONY: help demo test gpu-test gpu-bench lint ruff-check ruff-format-check mypy pyright lint-imports words schema breaking \
	check generate load load-kills soak chaos fuzz monitoring kubernetes ray status bench bench-compute peers conformance full image install \
	constraints mutants shape docs release clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed  ## Reconstruct a photograph through the service; writes out/demo.png
	mkdir -p out
	$(BIN)/gradwire demo --output out/demo.png

test: $(VENV)/.installed  ## Run the tests
	PYTHONPATH=tests $(BIN)/python -m support.prepare
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal -m "$(MARKS)" $(ARGS)

gpu-test: $(if $(GPU_PYTHON),,$(VENV)/.gpu$(CUDA))  ## Compare this machine's GPU with NumPy, bit for bit (CUDA=12 for older drivers)
	$(ON_GPU) -m support.kernels.cuda_table
	$(ON_GPU) -m pytest -p no:cacheprovider tests/gpu $(ARGS)

gpu-bench: $(if $(GPU_PYTHON),,$(VENV)/.gpu$(CUDA))  ## Measure this machine's GPU: a copy, PyTorch where it is installed, whole calls
	mkdir -p out
	$(ON_GPU) -m benchmarks gpu --json out/gpu.json $(ARGS)
	-$(ON_GPU) -m benchmarks gpu-plot out/gpu.json out/gpu.png

lint: ruff-check ruff-format-check mypy pyright lint-imports words  ## Check with ruff, mypy, pyright, the import contracts and a check of words
ruff-check: $(VENV)/.tools
	$(BIN)/ruff check
ruff-format-check: $(VENV)/.tools
	$(BIN)/ruff format --check
mypy: $(VENV)/.tools
	$(BIN)/mypy
pyright: $(VENV)/.tools
	$(BIN)/pyright --pythonpath $(BIN)/python
lint-imports: $(VENV)/.tools
	$(BIN)/lint-imports --no-logo
words: $(VENV)/.tools
	PYTHONPATH=tests $(BIN)/python -m shape.words

schema: $(VENV)/.installed $(GENERATE_VENV)/.installed  ## Check that generated code is current; buf lint, format, breaking
	$(GENERATE_VENV)/bin/python proto/generate.py --check
	$(BIN)/buf lint proto
	$(BIN)/buf format proto --diff --exit-code
	@$(MAKE) --no-print-directory breaking

breaking:  ## Compare the schema with the newest release's
	$(BIN)/buf breaking $(PROTO) --against $(RELEASED)

shape: $(VENV)/.tools  ## Count tokens, modules and complex functions, beside the baseline
	PYTHONPATH=tests $(BIN)/python -m shape

check: lint schema test  ## Run lint, schema and test

generate: $(GENERATE_VENV)/.installed  ## Write client/gradwire/v1 anew from proto/
	$(GENERATE_VENV)/bin/python proto/generate.py

load: $(VENV)/.installed  ## Put a server under every load of docs/load-testing.md; writes out/load.html and out/load.json
	mkdir -p out
	$(BIN)/gradwire bench --output out/load.json --report out/load.html $(ARGS)

soak: $(VENV)/.installed  ## Load a server for 20 minutes; fails if it keeps memory, threads, files or processes (ARGS="--duration 60")
	mkdir -p out
	PYTHONPATH=tests $(BIN)/python -m load.soak $(ARGS) >out/soak.json

load-kills: $(VENV)/.installed  ## Kill, renew and stop workers, and cut connections, under load; fails if a call is lost or wrong
	mkdir -p out
	PYTHONPATH=tests $(BIN)/python -m load.kills >out/kills.json

chaos: $(VENV)/.installed  ## 100 cuts, and workers stopped and killed, under load; then the tests of faults that take long
	mkdir -p out
	PYTHONPATH=tests $(BIN)/python -m load.kills >out/kills.json
	$(BIN)/python -m pytest -m slow tests/chaos $(ARGS)

fuzz: $(VENV)/.fuzz  ## Look for bytes that break a law of reading; SECONDS=600
	mkdir -p out
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --seconds $(SECONDS) --json out/fuzz.json

mutants: $(VENV)/.installed  ## Run 120 recorded mutants; fails if one escapes that tests caught (ARGS="run 7" for one)
	PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

bench: $(VENV)/.installed  ## Run the benchmarks of docs/benchmarks.md
	mkdir -p out
	$(BIN)/python -m benchmarks wire tiny large identity bidi --json out/wire.json
	$(BIN)/python -m benchmarks memory --json out/memory.json
	$(BIN)/python -m benchmarks start --json out/start.json
	$(BIN)/python -m benchmarks compute-fixed --json out/fixed_cost.json
	$(BIN)/python -m benchmarks telemetry --json out/telemetry.json
	$(BIN)/python -m benchmarks tls --json out/tls.json
	$(BIN)/python -m benchmarks many --json out/many.json
	$(BIN)/python -m benchmarks overload --json out/overload.json
	$(BIN)/python -m benchmarks scale compute --json out/split-compute.json
	$(BIN)/python -m benchmarks scale loopback --json out/split-loopback.json
	@if unshare -rn tc qdisc show >/dev/null 2>&1; then \
		unshare -rn $(BIN)/python -m benchmarks scale links --json out/split-links.json; \
	else \
		echo "scale links: skipped, this machine lets nobody make networks, or has no tc (iproute2)"; \
	fi

monitoring: $(VENV)/.installed  ## Check the dashboard and the alert rules with a real Prometheus
	.ci/monitoring $(BIN)/python

kubernetes: $(VENV)/.installed  ## Check the manifests of deploy/kubernetes with Kubernetes' schemas
	.ci/kubernetes $(BIN)/python build/kubernetes

ray:  ## Run replicas on a Ray cluster of network namespaces, under load, and kill a node; needs root
	.ci/ray $(VENV)-ray

status: $(VENV)/.installed  ## Look at the status page in Chromium; draws out/status.png
	.ci/status $(BIN)/python
	mkdir -p out
	PYTHONPATH=tests $(BIN)/python -m admin_http.picture out/status.png

bench-compute: $(VENV)/.peers  ## Compare with PyTorch, oneDNN and a copy loop; draws out/compute.png
	mkdir -p out
	$(BIN)/python -m benchmarks compute-fixed --json out/fixed_cost.json
	$(BIN)/python -m benchmarks compute --json out/compute.json
	$(BIN)/python -m benchmarks compute-growth --json out/scaling.json
	$(BIN)/python -m benchmarks wire local --json out/local.json
	$(BIN)/python -m benchmarks compute-plot out/compute.json out/scaling.json out/compute.png
	-$(BIN)/python -m benchmarks compute-targets out/compute.json

peers: $(VENV)/.installed  ## Compare with Triton, a bare grpc.aio server and PyTorch; large downloads (ARGS="--rows small")
	mkdir -p out
	$(BIN)/python -m benchmarks peers --json out/peers.json $(ARGS)

conformance: $(CONFORMANCE_VENV)/.installed  ## Compare with oneDNN, PyTorch, ONNX, TensorFlow, JAX and OpenVINO; writes docs/conformance.md
	PYTHONPATH=tests $(CONFORMANCE_VENV)/bin/python -m conformance --markdown docs/conformance.md

full: MARKS =
full: export HYPOTHESIS_PROFILE = thorough
full: $(VENV)/.full lint schema test bench load chaos soak  ## Everything, also what is too heavy for CI: live PyTorch and JAX, benchmarks

docs: $(VENV)-docs/.installed  ## Build the documentation site from docs/ without a network; warnings are errors
	rm -rf build/docs
	$(VENV)-docs/bin/python -m sphinx --nitpicky --fail-on-warning --keep-going --quiet --fresh-env --doctree-dir build/doctrees docs build/docs
	@echo "build/docs/index.html"

image:  ## Build the container image gradwire:cpu (TARGET=cuda12 or cuda13 for GPUs; BASE=... another base)
	DOCKER_BUILDKIT=1 docker build --file docker/Dockerfile --target $(TARGET) --tag gradwire:$(TARGET) \
		$(if $(BASE),--build-arg BASE=$(BASE)) \
		--label org.opencontainers.image.version=$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) \
		--label org.opencontainers.image.revision=$(shell git describe --always --dirty --abbrev=40 --exclude '*') .

release: $(VENV)/.tools docs  ## Build sdist, wheel and images, and try each; writes build/release/dist
	.ci/wheel $(BIN)/python $(CURDIR)/build/release
	.ci/docker $(BIN)/python || [ $$? = 77 ]

install: $(VENV)/.tools  ## Set up $(VENV) and run nothing

constraints:  ## Pin today's newest versions in constraints/pinned.txt and cuda12.txt
	rm -rf build/pin
	$(PYTHON) -m venv build/pin
	build/pin/bin/python $(PIP) install --upgrade pip
	build/pin/bin/python $(PIP) install --editable '.[cpu,cuda13,otel,plot,ray]' --group test --group lint --group package --group docs hatchling
	build/pin/bin/python -m pip freeze --all --exclude-editable --exclude setuptools > $(PINS)
	rm -rf build/pin
	$(PYTHON) -m venv build/pin
	build/pin/bin/python $(PIP) install --editable '.[cuda12]'
	build/pin/bin/python -m pip freeze | grep -E '^(cuda-toolkit|cupy-cuda12x|nvidia-)' > constraints/cuda12.txt
	rm -rf build/pin

clean:  ## Remove what these targets made
	rm -rf .venv .venv-generate .venv-conformance .venv-docs .venv-ray build dist out .coverage .hypothesis .*_cache tests/contract/node/node_modules

# Set up again whenever dependencies or pins have changed.
$(VENV)/.installed: pyproject.toml $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "gradwire needs Python 3.11 or newer: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments; run: apt-get update && apt-get install -y python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) install --constraint $(PINS) pip
	$(BIN)/python $(PIP) install --constraint $(PINS) --build-constraint $(PINS) \
		--editable '.[cpu,plot]' --group test
	@touch $@

$(VENV)/.tools: $(VENV)/.installed
	$(BIN)/python $(PIP) install --constraint $(PINS) --group lint --group package
	@touch $@

$(VENV)/.full: $(VENV)/.installed
	$(BIN)/python $(PIP) install --constraint $(PINS) --group full
	@touch $@

$(VENV)/.fuzz: $(VENV)/.installed
	$(BIN)/python $(PIP) install --constraint $(PINS) --group fuzz
	@touch $@

$(VENV)/.peers: $(VENV)/.installed
	$(BIN)/python $(PIP) install --constraint $(PINS) --editable '.[cpu,plot]' --group peers
	@touch $@

# The pins have CUDA 13's toolkit. CuPy's packages overwrite each other: the other one goes first.
$(VENV)/.gpu$(CUDA): $(VENV)/.installed
	$(BIN)/python $(PIP) uninstall --yes cupy-cuda12x cupy-cuda13x
	$(if $(filter 13,$(CUDA)),cat,grep -v '^cuda-toolkit==') $(PINS) > $(VENV)/gpu-pins.txt
	$(BIN)/python $(PIP) install --constraint $(VENV)/gpu-pins.txt --editable '.[cpu,plot,cuda$(CUDA)]' 'cuda-toolkit[sanitizer]==$(CUDA).*'
	rm -f $(VENV)/.gpu*
	@touch $@

$(GENERATE_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(GENERATE_VENV)
	$(GENERATE_VENV)/bin/python $(PIP) install --constraint $(PINS) pip
	$(GENERATE_VENV)/bin/python $(PIP) install --group generate
	@touch $@

# The pages are made from the packages, which are imported.
$(VENV)-docs/.installed: pyproject.toml $(PINS)
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python $(PIP) install --constraint $(PINS) pip
	$(VENV)-docs/bin/python $(PIP) install --constraint $(PINS) --build-constraint $(PINS) \
		--editable '.[server]' --group docs
	@touch $@

$(CONFORMANCE_VENV)/.installed: pyproject.toml $(PINS)
	$(PYTHON) -m venv $(CONFORMANCE_VENV)
	$(CONFORMANCE_VENV)/bin/python $(PIP) install --constraint $(PINS) pip
	$(CONFORMANCE_VENV)/bin/python $(PIP) install --constraint $(PINS) --build-constraint $(PINS) \
		--editable '.[server]' --group test --group conformance
	@touch $@
