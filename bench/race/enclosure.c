/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a contestant runs: namespaces of processes and mounts of its own, in which /proc shows only the allocators
 * of the race, and /proc/meminfo the virtual node as if it were the machine.
 *
 *   enclosure hold RECORD NODE CAPACITY SAMPLES MEMINFO  be the first process of the namespaces, update meminfo, take
 *                                               samples
 *   enclosure enter PID COMMAND [ARGUMENT ...]   become the command, in the mount namespace of process PID
 *
 * hold prints the PID that its inner process has outside and ends with it. NODE is the node's memory cgroup,
 * CAPACITY its bytes. MEMINFO is made, and is what /proc/meminfo shows inside; swap is the node's where it has a limit
 * of swap, and none elsewhere. RECORD, 8 zeroed 64-bit words, gets READY_NS once the enclosure is complete and COUNT with
 * every sample; SAMPLES is a zeroed file of pairs (CLOCK_MONOTONIC ns, bytes used), written as a ring, one a ms.
 * The command of enter is killed when the process that started it ends.
 * Exit status 0, or 1 with a line on stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define INTERVAL_NS 1000000LL /* a tenth of the quickest of the peers' */
#define CACHE_EVERY 20        /* memory.stat costs more than the usage and hardly moves during a heat */
#define PRIORITY 55           /* above the contestants, below the observer; runs for 10 us of each ms */

enum record { READY_NS, COUNT, WORDS = 8 };

/* As the kernel prints it: names padded to 16, numbers to 8 digits. Each number is replaced by one store of 8
 * bytes that lie in one cache line, so that a reader never sees half of one. */
static const char *const fields[] = {
	"MemTotal:", "MemFree:", "MemAvailable:", "Buffers:", "Cached:", "SwapCached:", "Active:", "Inactive:",
	"Active(anon):", "Inactive(anon):", "Active(file):", "Inactive(file):", "Unevictable:", "Mlocked:", "SwapTotal:",
	"SwapFree:", "Dirty:", "Writeback:", "AnonPages:", "Mapped:", "Shmem:", "KReclaimable:", "Slab:", "SReclaimable:",
	"SUnreclaim:", "KernelStack:", "PageTables:", "CommitLimit:", "Committed_AS:",
};
enum field { TOTAL = 0, FREE = 1, AVAILABLE = 2, CACHED = 4, INACTIVE_FILE = 11, SWAP_TOTAL = 14, SWAP_FREE = 15 };
#define FIELDS (sizeof(fields) / sizeof(*fields))
#define LINE 28
#define DIGITS_AT 16
_Static_assert((INACTIVE_FILE * LINE + DIGITS_AT) % 64 <= 56 && (FREE * LINE + DIGITS_AT) % 64 <= 56, "one cache line");
_Static_assert((SWAP_FREE * LINE + DIGITS_AT) % 64 <= 56, "one cache line");

static char *meminfo;
static int usage_fd, stat_fd, swap_fd = -1;
static int64_t swap_total;
static const char *inactive_name = "\ninactive_file ";

static void fail(const char *what)
{
	fprintf(stderr, "enclosure: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void *map_file(const char *path, int flags, size_t size)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0444);
	void *memory = MAP_FAILED;

	if (fd >= 0 && (!(flags & O_CREAT) || !ftruncate(fd, size)))
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail(path);
	close(fd);
	return memory;
}

/* A limit of swap is a number, or "max". */
static void open_swap(const char *node)
{
	char path[4096], text[32] = "";
	int limit_fd;

	snprintf(path, sizeof(path), "%s/memory.swap.max", node);
	limit_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (limit_fd < 0) /* cgroup v1, or a kernel without swap */
		return;
	if (read(limit_fd, text, sizeof(text) - 1) > 0)
		swap_total = atoll(text);
	close(limit_fd);
	if (swap_total <= 0)
		return;
	snprintf(path, sizeof(path), "%s/memory.swap.current", node);
	swap_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (swap_fd < 0)
		fail(path);
}

static void open_node(const char *node)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/memory.current", node);
	usage_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (usage_fd < 0) { /* cgroup v1, where a cgroup's own figures and those with its children have names of their own */
		snprintf(path, sizeof(path), "%s/memory.usage_in_bytes", node);
		usage_fd = open(path, O_RDONLY | O_CLOEXEC);
		inactive_name = "\ntotal_inactive_file ";
	}
	if (usage_fd < 0)
		fail(path);
	snprintf(path, sizeof(path), "%s/memory.stat", node);
	stat_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (stat_fd < 0)
		fail(path);
	open_swap(node);
}

static int64_t read_bytes(int fd)
{
	char text[32] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) <= 0)
		fail("the node's usage");
	return atoll(text);
}

static int64_t read_inactive_file(void)
{
	char text[8192];
	ssize_t length = pread(stat_fd, text, sizeof(text) - 1, 0);
	const char *found;

	if (length <= 0)
		fail("memory.stat");
	text[length] = 0;
	found = strstr(text, inactive_name);
	return found ? atoll(found + strlen(inactive_name)) : 0;
}

static void show(enum field field, int64_t bytes)
{
	char digits[9];

	snprintf(digits, sizeof(digits), "%8d", bytes > 0 ? (int)(bytes / 1024 % 100000000) : 0);
	memcpy(meminfo + field * LINE + DIGITS_AT, digits, 8); /* one store: the length is known */
}

static void show_node(int64_t capacity, int64_t usage, int64_t inactive_file)
{
	int64_t reclaimable = inactive_file < usage ? inactive_file : usage;

	show(AVAILABLE, capacity - usage + reclaimable);
	show(FREE, capacity - usage);
	show(CACHED, reclaimable);
	show(INACTIVE_FILE, reclaimable);
}

static void show_swap(void)
{
	if (swap_fd >= 0)
		show(SWAP_FREE, swap_total - read_bytes(swap_fd));
}

static void make_proc(int64_t capacity, const char *meminfo_path)
{
	char source[64];
	int fd;

	meminfo = map_file(meminfo_path, O_CREAT | O_EXCL, FIELDS * LINE);
	fd = open(meminfo_path, O_RDONLY | O_CLOEXEC); /* its path may be below what is hidden next */
	if (fd < 0)
		fail(meminfo_path);
	/* Nothing that is mounted here is seen outside. /run is hidden too: it has the sockets of other daemons. */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", "/run", "tmpfs", 0, "mode=755"))
		fail("mount /run");
	if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
		fail("mount /proc");
	for (size_t i = 0; i < FIELDS; i++) {
		char line[LINE + 1];

		snprintf(line, sizeof(line), "%-16s%8d kB\n", fields[i], 0);
		memcpy(meminfo + i * LINE, line, LINE);
	}
	show(TOTAL, capacity);
	show_node(capacity, read_bytes(usage_fd), read_inactive_file());
	show(SWAP_TOTAL, swap_total);
	show_swap();
	snprintf(source, sizeof(source), "/proc/self/fd/%d", fd);
	if (mount(source, "/proc/meminfo", NULL, MS_BIND, NULL))
		fail("mount /proc/meminfo");
	close(fd);
}

static _Noreturn void live(const char *record_path, int64_t capacity, const char *samples_path,
			   const char *meminfo_path)
{
	volatile int64_t *record = map_file(record_path, 0, WORDS * sizeof(int64_t));
	struct sched_param parameter = { .sched_priority = PRIORITY };
	struct stat size;
	volatile int64_t *samples;
	int64_t pairs, inactive_file = 0, usage, at_ns;

	if (stat(samples_path, &size))
		fail(samples_path);
	pairs = size.st_size / (2 * sizeof(int64_t));
	samples = map_file(samples_path, 0, size.st_size);
	make_proc(capacity, meminfo_path);
	sched_setscheduler(0, SCHED_FIFO, &parameter); /* if refused, meminfo lags on busy CPUs, for all contestants */
	signal(SIGCHLD, SIG_IGN);		       /* processes that are orphaned here are reaped by the kernel */
	record[READY_NS] = at_ns = now_ns();
	for (int64_t count = 0;; count++) {
		struct timespec next;

		if (count % CACHE_EVERY == 0) {
			inactive_file = read_inactive_file();
			show_swap();
		}
		usage = read_bytes(usage_fd);
		show_node(capacity, usage, inactive_file);
		samples[count % pairs * 2] = now_ns();
		samples[count % pairs * 2 + 1] = usage;
		record[COUNT] = count + 1;
		at_ns += INTERVAL_NS;
		if (at_ns < now_ns())
			at_ns = now_ns();
		next = (struct timespec){ .tv_sec = at_ns / SECOND_NS, .tv_nsec = at_ns % SECOND_NS };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
}

static int hold(char **arguments)
{
	int status;
	pid_t inner;

	open_node(arguments[1]);
	if (unshare(CLONE_NEWNS | CLONE_NEWPID))
		fail("unshare");
	inner = fork();
	if (inner < 0)
		fail("fork");
	if (inner == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		live(arguments[0], atoll(arguments[2]), arguments[3], arguments[4]);
	}
	printf("%d\n", inner);
	fflush(stdout);
	waitpid(inner, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static _Noreturn void enter(char **arguments)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", atoi(arguments[0]));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNS))
		fail(path);
	execvp(arguments[1], arguments + 1);
	fail(arguments[1]);
	_exit(1);
}

int main(int count, char **arguments)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (count == 7 && !strcmp(arguments[1], "hold"))
		return hold(arguments + 2);
	if (count > 3 && !strcmp(arguments[1], "enter"))
		enter(arguments + 2);
	fprintf(stderr, "enclosure: one of hold, enter with their arguments\n");
	return 1;
}
