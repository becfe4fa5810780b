# The eBPF objects, for the wheel. They are the same for every little-endian machine and every kernel with
# BTF: CO-RE fits them to the running kernel when they are loaded.
CLANG ?= clang
BPFTOOL ?= $(shell PATH="$$PATH:/usr/sbin:/sbin" command -v bpftool || echo bpftool)
# The kernel types that the sources are compiled against: those of the running kernel or of another one, as a
# copy of its /sys/kernel/btf/vmlinux or a vmlinux with debug information.
VMLINUX_BTF ?= /sys/kernel/btf/vmlinux
BPF_BUILD := .cache/bpf
COMPILED := reactor/kernel/bpf/compiled
# Each but the warrants once more by kprobes, for kernels that have no direct calls (bpf/hooks.bpf.h).
BPF_KPROBES := $(patsubst %,$(COMPILED)/%_kprobe.bpf.o,memory node node_available oom processes)
BPF_OBJECTS := $(patsubst bpf/%.bpf.c,$(COMPILED)/%.bpf.o,$(wildcard bpf/*.bpf.c)) $(BPF_KPROBES)
BCC_SOURCES := $(patsubst bpf/bcc/%.bcc.c,$(COMPILED)/%.bcc.c,$(wildcard bpf/bcc/*.bcc.c))
# Named by its source and the kind of machine, as reactor/testbed/allocator.py looks for it; static, so that it
# runs on each distribution.
ALLOCATORS := reactor/testbed/compiled/allocator-$(shell sha256sum reactor/testbed/allocator.c | cut -c 1-16)
MACHINE ?= $(shell uname -m)
ALLOCATOR := $(ALLOCATORS)-$(MACHINE)

.PHONY: bpf bpf-tools allocators

bpf: bpf-tools $(BPF_OBJECTS) $(BCC_SOURCES) $(ALLOCATOR) ## Build the eBPF objects, and the allocator of demo and tune (clang, libbpf-dev, bpftool, BTF)

bpf-tools:
	@command -v $(CLANG) >/dev/null || { echo "make bpf: $(CLANG) is missing (Debian: apt-get install clang)" >&2; exit 1; }
	@command -v $(BPFTOOL) >/dev/null || { echo "make bpf: $(BPFTOOL) is missing (Debian: apt-get install bpftool)" >&2; exit 1; }
	@echo '#include <bpf/bpf_helper_defs.h>' | $(CLANG) -E -target bpf -x c - >/dev/null 2>&1 || \
	  { echo "make bpf: bpf/bpf_helpers.h is missing (Debian: apt-get install libbpf-dev)" >&2; exit 1; }

$(ALLOCATOR): reactor/testbed/allocator.c
	@mkdir -p $(@D) && find $(@D) -name 'allocator-*' ! -name '$(notdir $(ALLOCATORS))-*' -delete
	$(CC) -O2 -Wall -pthread -static -s -o $@ $<

# A wheel is for both architectures: the one that is not ours by Debian's cross compiler, if that is there.
allocators: $(ALLOCATOR) ## Build the allocator for x86-64 and arm64 (gcc-aarch64-linux-gnu, gcc-x86-64-linux-gnu)
	@for machine in x86_64 aarch64; do \
	  made=$(ALLOCATORS)-$$machine; compiler=$$machine-linux-gnu-gcc; \
	  if [ -x $$made ]; then continue; fi; \
	  command -v $$compiler >/dev/null || { echo "make wheel: no $$compiler: demo and tune compile there what the" \
	    "wheel lacks for $$machine (it is in Debian's gcc-$$(echo $$machine | tr _ -)-linux-gnu)" >&2; continue; }; \
	  echo $$compiler -o $$made; \
	  $$compiler -O2 -Wall -pthread -static -s -o $$made reactor/testbed/allocator.c || exit 1; \
	done

# Written each time, and renewed only where another kernel's types come out: then everything is rebuilt.
$(BPF_BUILD)/vmlinux.h: bpf-tools
	@test -r $(VMLINUX_BTF) || { echo "make bpf: no $(VMLINUX_BTF): this kernel has no BTF (CONFIG_DEBUG_INFO_BTF);" \
	  "name another's: make bpf VMLINUX_BTF=FILE" >&2; exit 1; }
	@mkdir -p $(@D)
	@$(BPFTOOL) btf dump file $(VMLINUX_BTF) format c >$@.new || \
	  { echo "make bpf: $(BPFTOOL) finds no BTF in $(VMLINUX_BTF)" >&2; exit 1; }
	@if cmp --silent $@.new $@; then rm $@.new; else mv $@.new $@; fi

# -mcpu=v3: compare-and-exchange. -g: the BTF in the object, without which there is no CO-RE; what else -g
# leaves in it (650 KiB) is not taken over by bpftool's linker.
define compiled
	@mkdir -p $(@D)
	$(CLANG) -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -target bpfel -mcpu=v3 -I$(BPF_BUILD) $1 \
	  -ffile-prefix-map=$(CURDIR)=. -c $< -o $(BPF_BUILD)/$(@F)
	$(BPFTOOL) gen object $@ $(BPF_BUILD)/$(@F)
endef

$(BPF_KPROBES): $(COMPILED)/%_kprobe.bpf.o: bpf/%.bpf.c $(wildcard bpf/*.h) $(BPF_BUILD)/vmlinux.h
	$(call compiled,-DBY_KPROBE)

$(COMPILED)/%.bpf.o: bpf/%.bpf.c $(wildcard bpf/*.h) $(BPF_BUILD)/vmlinux.h
	$(call compiled)

$(COMPILED)/node_available.bpf.o $(COMPILED)/node_available_kprobe.bpf.o: bpf/node.bpf.c

# What BCC compiles where the kernel has no BTF, with the headers of this repository put into it: BCC rewrites
# the file that it is given, and none that is included.
$(COMPILED)/%.bcc.c: bpf/bcc/%.bcc.c $(wildcard bpf/bcc/*.h bpf/*.h)
	@mkdir -p $(@D)
	$(PYTHON) bpf/bcc/flatten.py $< >$@
