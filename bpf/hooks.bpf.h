/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Where a program is called, and how it reads what it is given: each body of bpf/ in two ways.
 *
 * By trampolines (fentry, fexit), which need the kernel's direct calls: x86-64 since 5.5, arm64 since 6.4. A charge is
 * seen after it was made, and the kernel's types are followed by BTF.
 *
 * With BY_KPROBE by kprobes, which both have always had. The function is only about to run: `coming` is what it will
 * add, and whether it will find room is foretold. What another processor adds in the same instant is seen by the next
 * charge, 64 pages on at the most. Memory is read by bpf_probe_read_kernel, which "confidentiality" forbids.
 */
#ifndef REACTOR_HOOKS_BPF_H
#define REACTOR_HOOKS_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#ifdef BY_KPROBE

#define FIELD(pointer, field) BPF_CORE_READ(pointer, field)

/* The registers of either architecture: CO-RE leaves the branch of the running one, so that one object does for both. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs___x86_64 {
	unsigned long si, di;
};

struct user_pt_regs___arm64 {
	__u64 regs[31];
};

#pragma clang attribute pop

/* The compiler must not make one load of the two, at an address that it computes: the verifier takes none there. */
#define EITHER(on_x86_64, on_arm64)                                                                      \
	({                                                                                               \
		__u64 value;                                                                             \
                                                                                                         \
		if (bpf_core_field_exists(on_x86_64)) {                                                  \
			value = on_x86_64;                                                               \
			barrier_var(value);                                                              \
		} else {                                                                                 \
			value = on_arm64;                                                                \
			barrier_var(value);                                                              \
		}                                                                                        \
		value;                                                                                   \
	})

static __always_inline __u64 first_argument(void *registers)
{
	return EITHER(((struct pt_regs___x86_64 *)registers)->di, ((struct user_pt_regs___arm64 *)registers)->regs[0]);
}

static __always_inline __u64 second_argument(void *registers)
{
	return EITHER(((struct pt_regs___x86_64 *)registers)->si, ((struct user_pt_regs___arm64 *)registers)->regs[1]);
}

#define DEEPEST_LIMIT 16

/* Foretell what page_counter_try_charge() will return: whether no counter up to the root passes its limit. */
static __always_inline bool has_room(struct page_counter *counter, __u64 coming)
{
	for (int i = 0; i < DEEPEST_LIMIT && counter; i++) {
		if (BPF_CORE_READ(counter, usage.counter) + coming > BPF_CORE_READ(counter, max))
			return false;
		counter = BPF_CORE_READ(counter, parent);
	}
	return true;
}

#define ON_TRY_CHARGE(name, body)                                                                        \
	SEC("kprobe/page_counter_try_charge")                                                            \
	int name(void *registers)                                                                        \
	{                                                                                                \
		struct page_counter *counter = (void *)first_argument(registers);                        \
		__u64 coming = second_argument(registers);                                               \
                                                                                                         \
		body(counter, coming, has_room(counter, coming));                                        \
		return 0;                                                                                \
	}

#define ON_CHARGE(name, body)                                                                            \
	SEC("kprobe/page_counter_charge")                                                                \
	int name(void *registers)                                                                        \
	{                                                                                                \
		body((void *)first_argument(registers), second_argument(registers), true);               \
		return 0;                                                                                \
	}

#define ON_ENTRY(function, name, body)                                                                   \
	SEC("kprobe/" #function)                                                                         \
	int name(void *registers)                                                                        \
	{                                                                                                \
		body((void *)first_argument(registers));                                                 \
		return 0;                                                                                \
	}

#else

#define FIELD(pointer, field) ((pointer)->field)

#define ON_TRY_CHARGE(name, body)                                                                        \
	SEC("fexit/page_counter_try_charge")                                                             \
	int BPF_PROG(name, struct page_counter *counter, unsigned long nr_pages, struct page_counter **fail, \
		     bool charged)                                                                       \
	{                                                                                                \
		body(counter, 0, charged);                                                               \
		return 0;                                                                                \
	}

#define ON_CHARGE(name, body)                                                                            \
	SEC("fexit/page_counter_charge")                                                                 \
	int BPF_PROG(name, struct page_counter *counter, unsigned long nr_pages)                         \
	{                                                                                                \
		body(counter, 0, true);                                                                  \
		return 0;                                                                                \
	}

#define ON_ENTRY(function, name, body)                                                                   \
	SEC("fentry/" #function)                                                                         \
	int BPF_PROG(name, void *first)                                                                  \
	{                                                                                                \
		body(first);                                                                             \
		return 0;                                                                                \
	}

#endif

#endif
