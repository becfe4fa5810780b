/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The way up through the cgroups, each of them in a run of its own: a program looks at one counter and then
 * calls itself for the parent's. A loop would have to be followed by the verifier through everything that a
 * level can do, as often as cgroups can be nested; 6.1 gives up on that after a million instructions. The
 * kernel ends it after 33 calls.
 */
#ifndef REACTOR_BCC_WALK_H
#define REACTOR_BCC_WALK_H

struct walk {
	u64 at; /* 0: past the root */
	u64 pages; /* are being charged */
	u64 limited; /* the charge is refused at a limit... */
	u64 met; /* ...which was met on the way */
};

/* kprobes don't interrupt one another: one walk at a time on each CPU. */
BPF_PERCPU_ARRAY(walks, struct walk, 1);

/* [0]: the program that takes a step; filled in by the child that compiles this. */
BPF_PROG_ARRAY(steps, 1);

static __always_inline struct walk *this_walk(void)
{
	int key = 0;

	return walks.lookup(&key);
}

#endif
