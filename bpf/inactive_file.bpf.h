/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The inactive page cache of a cgroup to the page: what its own lists hold, those of all cgroups below it, and
 * pages that are on their way to a list.
 *
 * The kernel's statistics (memory.stat) lag behind by 64 pages and more for each CPU, and those of the machine
 * do not tell what comes in one cgroup from what goes in another.
 */
#ifndef REACTOR_INACTIVE_FILE_BPF_H
#define REACTOR_INACTIVE_FILE_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "core_fixes.bpf.h"
#include "page_cache.bpf.h"

extern const void cpu_fbatches __ksym __weak;

#define MOST_STEPS 8192 /* one down to each cgroup, and one back up */
#define MOST_ZONES 6
#define LISTS 5

_Static_assert(NR_LRU_LISTS == LISTS, "the lists of a zone");

/* A walk over the memory controller's cgroups, each before those below it. */
struct subtree {
	struct cgroup_subsys_state *top, *at, *parent;
	__s64 pages;
	__u32 nodes;
	bool is_counted; /* `at` and all below it */
	bool is_lost; /* something could not be read */
	bool is_done;
};

static __always_inline bool add_zones(struct subtree *tree, const void *amounts, __u32 bytes)
{
	__s64 found[MOST_ZONES] = {};

	if (bytes > sizeof(found) || bpf_probe_read_kernel(found, bytes, amounts))
		return false;
	for (int zone = 0; zone < MOST_ZONES; zone++)
		tree->pages += found[zone];
	return true;
}

/* Of the multi-generational lists all but the two youngest generations count as inactive. */
static __always_inline bool add_old_generations(struct subtree *tree, const void *lruvec)
{
	struct lruvec___with_generations *lists = (void *)lruvec;
	__u64 youngest = 0;
	__u32 bytes; /* of one generation and kind, all zones */

	if (!bpf_core_field_exists(lists->lrugen.nr_pages))
		return true;
	if (bpf_core_read(&youngest, sizeof(youngest), &lists->lrugen.max_seq))
		return false;
	bytes = bpf_core_field_size(lists->lrugen.nr_pages) / (2 * GENERATIONS);
	for (int age = 2; age < GENERATIONS; age++) {
		__u64 generation = (youngest + GENERATIONS - age) % GENERATIONS;

		/* anonymous memory first, then files */
		if (!add_zones(tree, (void *)&lists->lrugen.nr_pages + (2 * generation + 1) * bytes, bytes))
			return false;
	}
	return true;
}

/* All lists of all zones are read at once: it is the calls that cost. */
static __always_inline bool add_inactive_lists(struct subtree *tree, struct mem_cgroup_per_node *node)
{
	__s64 found[MOST_ZONES * LISTS] = {};
	__u32 bytes = bpf_core_field_size(node->lru_zone_size);

	if (bytes > sizeof(found) || bpf_probe_read_kernel(found, bytes, &node->lru_zone_size))
		return false;
	for (int zone = 0; zone < MOST_ZONES; zone++)
		tree->pages += found[zone * LISTS + LRU_INACTIVE_FILE];
	return true;
}

static long add_node(__u32 index, struct subtree *tree)
{
	struct mem_cgroup *memcg = (void *)tree->at - bpf_core_field_offset(struct mem_cgroup, css);
	struct mem_cgroup_per_node *node = NULL;

	if (bpf_probe_read_kernel(&node, sizeof(node), (void *)&memcg->nodeinfo + sizeof(node) * index)) {
		tree->is_lost = true;
		return 1;
	}
	/* Either kind of list is empty where the other is used. */
	if (node && !(add_inactive_lists(tree, node) && add_old_generations(tree, &node->lruvec))) {
		tree->is_lost = true;
		return 1;
	}
	return 0;
}

static __always_inline struct cgroup_subsys_state *of_sibling(struct list_head *sibling)
{
	return (void *)sibling - bpf_core_field_offset(struct cgroup_subsys_state, sibling);
}

static long add_cgroup(__u32 step, struct subtree *tree)
{
	struct cgroup_subsys_state *at = tree->at, *parent = tree->parent;
	struct list_head *next;

	if (!tree->is_counted) {
		if (tree->nodes == 1)
			add_node(0, tree);
		else
			bpf_loop(tree->nodes, add_node, tree, 0);
		if (tree->is_lost)
			return 1;
		next = BPF_CORE_READ(at, children.next);
		if (next && next != &at->children) {
			tree->parent = at;
			tree->at = of_sibling(next);
			return 0;
		}
	}
	if (at == tree->top) {
		tree->is_done = true;
		return 1;
	}
	next = BPF_CORE_READ(at, sibling.next);
	if (!next)
		return 1;
	tree->is_counted = next == &parent->children;
	tree->at = tree->is_counted ? parent : of_sibling(next);
	if (tree->is_counted)
		tree->parent = BPF_CORE_READ(parent, parent);
	return 0;
}

/* What CPUs have gathered of new pages before they put them on a list, all at once. */
struct gathered {
	const struct folio_batch *batch;
	__u64 files;
};

static long add_if_file(__u32 index, struct gathered *gathered)
{
	const struct folio_batch *batch = gathered->batch;
	struct folio *folio = NULL;

	/* The lowest bit of `mapping` is set for anonymous memory. */
	if (!bpf_probe_read_kernel(&folio, sizeof(folio), (void *)&batch->folios + sizeof(folio) * index) && folio &&
	    !((__u64)BPF_CORE_READ(folio, mapping) & 1))
		gathered->files++;
	return 0;
}

static long add_batch(__u32 cpu, struct gathered *gathered)
{
	const struct folio_batch *batch = (const void *)&cpu_fbatches;
	__u32 most = bpf_core_field_size(batch->folios) / sizeof(__u64), pages;
	__u64 offset = 0;

	if (bpf_probe_read_kernel(&offset, sizeof(offset), (const void *)&__per_cpu_offset + sizeof(offset) * cpu))
		return 0;
	gathered->batch = batch = (const void *)batch + offset + bpf_core_field_offset(struct cpu_fbatches, lru_add);
	pages = BPF_CORE_READ(batch, nr);
	bpf_loop(pages < most ? pages : most, add_if_file, gathered, 0);
	return 0;
}

/* Return how many pages of files, of whatever cgroup, will be on a list soon; -1 where the kernel hides it. */
static __always_inline __s64 files_on_their_way(void)
{
	struct gathered gathered = {};
	__u32 cpus = 0;
	__s64 isolated = exact_pages(bpf_core_enum_value(enum node_stat_item, NR_ISOLATED_FILE), NO_ITEM);

	if (isolated < 0 || !&cpu_fbatches || !&__per_cpu_offset || !&nr_cpu_ids ||
	    bpf_probe_read_kernel(&cpus, sizeof(cpus), &nr_cpu_ids))
		return -1;
	bpf_loop(cpus, add_batch, &gathered, 0);
	return isolated + gathered.files;
}

/*
 * Return the inactive page cache below a cgroup, named by the address of its page counter, in pages; -1 where it can't
 * be known: the kernel hides it, or there are more cgroups than MOST_STEPS allows for. Only under RCU: cgroups may go
 * meanwhile. What is on its way to a list is counted whosever it is.
 *
 * Not static: the verifier looks at it once, and not for each way through the program that calls it.
 */
__noinline __s64 inactive_file_below(__u64 page_counter)
{
	__u64 memcg = page_counter - bpf_core_field_offset(struct mem_cgroup, memory);
	struct subtree tree = {.nodes = 1, .pages = files_on_their_way()}; /* first: they are counted twice, or once */
	__u32 nodes = 0;

	if (tree.pages < 0)
		return -1;
	tree.top = tree.at = (void *)memcg + bpf_core_field_offset(struct mem_cgroup, css);
	if (&nr_node_ids && !bpf_probe_read_kernel(&nodes, sizeof(nodes), &nr_node_ids))
		tree.nodes = nodes;
	bpf_loop(MOST_STEPS, add_cgroup, &tree, 0);
	return tree.is_done ? (__s64)whole_pages(tree.pages) : -1;
}

#endif
