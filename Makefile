# `make help` lists the targets. Everything built lies in build/.
SHELL := /bin/bash
GO ?= go
export SCUDA_VERSION := $(shell ./version.sh)

.DEFAULT_GOAL := help
.PHONY: help build pool test test-scuda test-modules fuzz test-rdma perf-rdma demo pictures generate lint \
	generated linters dist clean runtimes check-go needs-build needs-test needs-lint needs-release needs-install \
	needs-slurm needs-kubernetes needs-site release site test-install apt-source test-frameworks test-slurm \
	test-kubernetes test-helm test-scale

# $(call step,WHAT,COMMAND) says what is done, and how long it took.
define step
@echo "== $(1) …"
@$(2) && echo "   $$SECONDS s"
endef

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# At the same time, as neither uses two processors throughout.
LIBRARIES_AND_PROGRAMS = ./shim/build.sh build/lib & libraries=$$!; \
	./cmd/build.sh build go; programs=$$?; wait $$libraries && test $$programs = 0 && ./cmd/build.sh build c

# BUILT=1: not again what was built a moment ago, as .ci/run does.
build: check-go needs-build ## build build/scuda, build/lib and build/sim (the first time in 1 to 3 minutes)
ifndef BUILT
	$(call step,build the client libraries into build/lib and the programs into build,$(LIBRARIES_AND_PROGRAMS))
	$(call step,build the simulated driver into build/sim,./sim/lib/build.sh build/sim)
endif

# Without cgo, as it has etcd in it and nothing of the client.
pool: build ## build build/scuda-pool, which gives out GPUs of several servers (docs/pool.md)
	$(call step,build the pool's program into build,./deploy/pool/build.sh build)

# Without go vet, which is golangci-lint's (make lint).
TEST_FLAGS := -race -shuffle=on -count=1 -vet=off

# The modules beside scuda's wait for etcd most of the time: their tests run at the same time.
test: needs-test build pool runtimes ## run all tests with the race detector (about 20 minutes on two processors)
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target test-scuda test-modules

# go starts the packages' tests in the order named: e2e's first, as they take longest.
test-scuda:
	$(call step,all tests: one line a package; e2e takes longest,\
	$(GO) test $(TEST_FLAGS) -timeout 60m ./e2e ./... && echo "all packages passed")

test-modules:
	$(call step,the Kubernetes driver (a module of its own; the first build takes minutes),\
	cd deploy/kubernetes && $(GO) test $(TEST_FLAGS) -timeout 10m ./...)
	$(call step,the pool (likewise),cd deploy/pool && $(GO) test $(TEST_FLAGS) -timeout 10m ./plan ./metrics ./lab)
	$(call step,what docs/nomad.md says,$(GO) -C deploy/nomad test $(TEST_FLAGS) -timeout 10m ./...)

FUZZTIME ?= 10m
fuzz: build ## attack servers and clients with changed sessions for FUZZTIME (10m); FUZZFLAGS=-h lists more
	$(GO) run ./e2e/fuzz -for $(FUZZTIME) $(FUZZFLAGS)

# The packages that hold code for RDMA devices; their tests with the build tag rdma need two of them, which the virtual
# machine has. Those of ebpf run there on an older kernel. ebpf's and e2e/rdma's only watch other processes: they do
# without the race detector, which an emulated machine has no time for.
RDMA_TESTS := verbs transport/rdma e2e/rdma
# $(call program,SOURCE) builds a program that runs there.
program = $(or $(CC),cc) -std=gnu11 -O2 -Wall -Wextra -Werror -I shim/include -o build/rdma/$(basename $(notdir $(1))) \
	$(1) -L build/lib -l:libcuda.so.1 -Wl,--allow-shlib-undefined -lm
test-rdma: build ## run the RDMA tests in a virtual machine with soft-RoCE (minutes; Debian packages are installed)
	mkdir -p build/rdma
	$(call program,e2e/rdma/testdata/transfers.c)
	$(call program,e2e/programs/several_peers.c)
	set -e; for p in $(RDMA_TESTS) ebpf; do \
	case $$p in verbs | transport/rdma) race=-race ;; *) race= ;; esac; \
	$(GO) test $$race -c -tags rdma -o build/rdma/$$(echo $$p | tr / -).test ./$$p; done
	./verbs/guest/test.sh

perf-rdma: build ## compare RDMA with perftest's figures in the virtual machine
	mkdir -p build/rdma/plain
	$(call program,e2e/rdma/testdata/transfers.c)
	set -e; for p in $(RDMA_TESTS); do \
	$(GO) test -c -tags rdma -o build/rdma/plain/$$(echo $$p | tr / -).test ./$$p; done
	./perf/rdma.sh

demo: build ## train a small GPT on a simulated GPU that another process serves (46 s after the build)
	$(call step,the demo,build/scuda demo --gpu sim:cc=12.0)

SPEED := perf/results/2026-11-22-h200-speed.json
# Not within the step: a comma there ends its argument.
SHOT := chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=920,1020 --screenshot
pictures: build needs-test ## make the pictures of the documents anew: the recorded demonstration, the reports
	$(call step,the demonstration,$(GO) run ./examples/picture -o docs/demo.svg build/scuda demo)
	$(call step,the first steps of a new user,./examples/picture/install.sh docs/install.svg)
	$(call step,the chart of the README,$(GO) run ./perf/bench/table)
	$(call step,the report,build/scuda perf report $(SPEED) --html build/report-h200.html && \
	$(SHOT)=docs/perf-report.png build/report-h200.html)
	$(call step,the page of a timeline,./timeline/picture.sh build/scuda docs/timeline.png)

site: check-go needs-site ## build the documents as a site, with search, in build/site/html (about half a minute)
	$(call step,the site,./docs/site/build.sh)

generate: check-go needs-build needs-lint ## write what is generated: from the API description, lists of folders, files
	$(GO) run ./api/gen
	$(GO) run ./config/table
	$(GO) generate ./ebpf
	$(GO) run ./changelog
	$(GO) test ./internal/house -update

# What is built to be run here only shares its parts of Go's library with the pool's program, and with scuda-connect.
HERE := CGO_ENABLED=0 GOFLAGS=-trimpath
# Built by Go's own cache of builds: about 2.5 minutes of processor time the first time.
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# $(call lint,MODULE,GOFLAGS). What a module imports is compiled for the linters: with the race detector, so that
# `make test` finds it in Go's cache of builds; so it is with go vet below. The pool's is that of `make pool`.
lint = cd $(1) && GOFLAGS=$(2) $(CURDIR)/build/golangci-lint run --allow-parallel-runners \
	--config $(CURDIR)/.golangci.yml
# Other compilers give other bytes.
CLANG := clang version 14.0.6
lint: generated linters ## check formatting, generated code, and run the linters (minutes the first time)

generated: check-go needs-build needs-lint ## check formatting, what is generated, and the rules of the repository
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || \
	{ gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these files"; exit 1; }
	$(call step,what is generated is up to date,\
	for what in api/gen changelog deploy/grafana; do $(HERE) $(GO) run ./$$what -check || exit 1; done; \
	for what in config/table perf/bench/table; do $(GO) run -race ./$$what -check || exit 1; done; \
	for m in . deploy/kubernetes deploy/pool deploy/nomad; do $(GO) -C $$m mod tidy -diff || exit 1; done)
	$(call step,the rules of the house,$(GO) test -race -count=1 ./internal/house)
	@clang --version 2>/dev/null | grep -q '$(CLANG)' || \
	{ echo "the probes' programs are compared with those of $(CLANG) (Debian 12)"; exit 1; }
	$(call step,the programs of the probes,d=$$(mktemp -d) && trap "rm -rf $$d" EXIT && \
	cp ebpf/*_bpfel.go ebpf/*_bpfel.o ebpf/zz_system_gen.go $$d && $(HERE) $(GO) generate ./ebpf && \
	for f in $$d/*; do cmp $$f ebpf/$${f##*/} || { echo "run make generate"; exit 1; }; done)

linters: check-go needs-build ## run the linters alone
	$(call step,build golangci-lint,$(HERE) GOBIN=$(CURDIR)/build $(GO) install $(GOLANGCI_LINT))
	$(call step,golangci-lint,$(call lint,.,-race))
	$(call step,golangci-lint of the Kubernetes driver,$(call lint,deploy/kubernetes,-race))
	$(call step,golangci-lint of the pool,$(call lint,deploy/pool,-trimpath CGO_ENABLED=0))
	$(call step,golangci-lint of the test of docs/nomad.md,$(call lint,deploy/nomad,-race))
	$(call step,go vet of generated code (which golangci-lint leaves out),$(GO) vet -race $$(git grep -l \
	'^// Code generated .* DO NOT EDIT' -- '*.go' | xargs -n1 dirname | sort -u | sed 's|^|./|'))
	$(call step,go vet of the client's program,$(GO) vet -race -tags client ./cmd/scuda)

dist: build ## pack archive, one file, .deb and .rpm for this machine's processor in build/dist
	$(call step,pack,rm -rf build/dist && ./deploy/dist.sh)

release: build needs-release ## make all of a release in build/release: two processors, checksums, lists of parts
	./deploy/release.sh

apt-source: ## make a source for apt in build/apt of the packages in build/release (SCUDA_APT_KEY signs it)
	@./packages.sh release
	$(call step,a source for apt,./deploy/apt.sh build/release build/apt)

test-install: release needs-install ## install each package in clean systems and use it (see docs/tests.md)
	$(call step,clean systems,./deploy/clean/test.sh build/release)

test-frameworks: build ## run PyTorch, numba, ffmpeg … over scuda on the simulated GPU (15 minutes; 5 GB in ~/.cache)
	./e2e/frameworks/test.sh

test-slurm: build needs-slurm ## run jobs of Slurm on two simulated servers: two nodes, 200 jobs (root; 10 minutes)
	$(GO) test -tags slurm -count=1 -timeout 40m -v -run TestSlurm ./deploy/slurm

HELM := helm.sh/helm/v4/cmd/helm@v4.3.1
CLUSTER_PARTS ?= $(HOME)/.cache/scuda/kubernetes
test-kubernetes: build needs-kubernetes ## run pods in a cluster of this machine (root; 5 minutes, 20 the first time)
	$(call step,the programs of the cluster (kept in $(CLUSTER_PARTS)),\
	GO=$(GO) HELM=$(HELM) deploy/kubernetes/lab/parts/build.sh $(CLUSTER_PARTS))
	SCUDA_CLUSTER_PARTS=$(CLUSTER_PARTS) $(GO) -C deploy/kubernetes test -tags kubernetes -count=1 -timeout 40m -v \
	-run TestCluster ./lab

test-helm: check-go ## have Helm itself check and render the chart (the first time it is built, in minutes)
	mkdir -p build
	GOBIN=$(CURDIR)/build $(GO) install $(HELM)
	HELM=$(CURDIR)/build/helm $(GO) -C deploy/kubernetes test -tags helm -count=1 -v -run TestHelm ./chart

# One processor-heavy figure of docs/scale.md: 1,000 servers and 10,000 claims.
SCALE ?= 1000,10000
test-scale: check-go ## measure the Kubernetes controller with SCALE servers and claims (1000,10000; 4 minutes)
	SCUDA_SCALE=$(SCALE) SCUDA_SCALE_ARGS="$(SCALE_ARGS)" $(GO) -C deploy/kubernetes test -count=1 -timeout 40m -v \
	-run TestScale ./cmd/scuda-dra

clean: ## remove what was built
	rm -rf build

# Debian packages, only where something is missing, and of them only what the target needs.
needs-build:
	@./packages.sh build
needs-test:
	@./packages.sh build test
needs-lint:
	@./packages.sh build lint
needs-release:
	@./packages.sh release
needs-install:
	@./packages.sh install
needs-slurm:
	@./packages.sh slurm
needs-kubernetes:
	@./packages.sh kubernetes
needs-site:
	@./packages.sh site

# The CUDA runtime of other versions, programs that are older than scuda, and Prometheus, for the tests: as Debian
# distributes them, not installed.
runtimes:
	$(call step,fetch what the tests run from Debian's packages into build (once),\
	./e2e/runtimes.sh build/cudart && ./e2e/packaged.sh build/packaged)

check-go: # Go 1.21 and newer fetch the release that go.mod names
	@v=$$($(GO) env GOVERSION 2>/dev/null | grep -oE '^go1\.[0-9]+' | cut -d. -f2); test "$${v:-0}" -ge 21 || \
	{ echo "no usable Go (Debian 12's own is too old); get it with:" \
	"curl -L https://go.dev/dl/go1.26.0.linux-amd64.tar.gz | sudo tar -C /usr/local -xz &&" \
	"export PATH=/usr/local/go/bin:\$$PATH"; exit 1; }
