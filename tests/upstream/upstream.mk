# The policy against upstream's own code. See tests/upstream/README.md.
SEEDS ?= 0:20000
DIFFERENTIAL := $(BIN)/python -m tests.upstream.differential

.PHONY: test-upstream test-upstream-mutants policy-page
test-upstream: setup ## The policy against the kubelet's own code on 20,000 random scenarios (SEEDS=0:1000 for fewer)
	oracle=$$(tests/upstream/build-oracle.sh); $(DIFFERENTIAL) run --oracle "$$oracle" --seeds $(SEEDS)

test-upstream-mutants: setup ## Whether test-upstream sees faults that are put into the policy (MUTANTS="--only rank")
	oracle=$$(tests/upstream/build-oracle.sh); $(DIFFERENTIAL) mutants --oracle "$$oracle" $(MUTANTS)

policy-page: setup ## Make the list of deliberate differences in docs/policy.md again
	$(DIFFERENTIAL) policy-page
