# The eBPF objects, for the wheel. They are the same for every little-endian machine and every kernel with
# BTF: CO-RE fits them to the running kernel when they are loaded.
CLANG ?= clang
BPF_OBJECTS := $(patsubst bpf/%.bpf.c,reactor/kernel/bpf_objects/%.bpf.o,$(wildcard bpf/*.bpf.c))

.PHONY: bpf bpf-tools

bpf: bpf-tools $(BPF_OBJECTS) ## Build the eBPF objects (clang, libbpf-dev)

bpf-tools:
	@command -v $(CLANG) >/dev/null || { echo "make bpf: $(CLANG) is missing (Debian: apt-get install clang)" >&2; exit 1; }
	@echo '#include <bpf/bpf_helpers.h>' | $(CLANG) -E -target bpf -include bpf/kernel.h -x c - >/dev/null 2>&1 || \
	  { echo "make bpf: bpf/bpf_helpers.h is missing (Debian: apt-get install libbpf-dev)" >&2; exit 1; }

# -mcpu=v3: compare-and-exchange. -g: the BTF in the object, without which there is no CO-RE.
reactor/kernel/bpf_objects/%.bpf.o: bpf/%.bpf.c $(wildcard bpf/*.h)
	@mkdir -p $(@D)
	$(CLANG) -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -target bpfel -mcpu=v3 -ffile-prefix-map=$(CURDIR)/= -c $< -o $@
