/* SPDX-License-Identifier: Apache-2.0
 *
 * The least that can stand between a crossing and a kill: wait, kill, nothing else. No ranking, no second look,
 * no journal; one crossing, then it ends. What takes longer than this is the daemon's, what this takes is the
 * kernel's and the machine's.
 *
 *   floor memcg RECORD CGROUP LEVEL TARGET            wait for the threshold eventfd of a v1 memory cgroup
 *   floor ring RECORD FD TARGET                       wait for a record in the eBPF ring buffer that is open as FD
 *   floor events RECORD FILE TARGET                   wait for a change of memory.events, with memory.high at the level
 *   floor poll RECORD USAGE LEVEL INTERVAL_MS PHASE_MS TARGET  read the usage again and again, first after PHASE_MS
 *
 * TARGET: a cgroup.kill file, or the PIDs of those to be killed, which are then held by pidfds.
 * RECORD, 8 zeroed 64-bit words, gets READY_NS once it waits, WOKE_NS and KILLED_NS; CLOCK_MONOTONIC, all of them.
 * The clock is read after the wake and after the kill, which costs 50 ns.
 * Exit status 0, or 1 with a line on stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_VICTIMS 64
#define PRIORITY 50 /* the daemon's own default */

enum record { READY_NS, WOKE_NS, KILLED_NS, WORDS = 8 };

static volatile int64_t *record;
static int kill_fd = -1, victims[MOST_VICTIMS], victim_count;

static void fail(const char *what)
{
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int open_file(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0)
		fail(path);
	return fd;
}

static void open_record(const char *path)
{
	int fd = open_file(path, O_RDWR);

	record = mmap(NULL, WORDS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (record == MAP_FAILED)
		fail(path);
	close(fd);
}

static void hold_target(int count, char **arguments)
{
	if (count == 1 && strchr(arguments[0], '/')) {
		kill_fd = open_file(arguments[0], O_WRONLY);
		return;
	}
	for (int i = 0; i < count && i < MOST_VICTIMS; i++) {
		victims[i] = syscall(SYS_pidfd_open, atoi(arguments[i]), 0);
		if (victims[i] < 0)
			fail(arguments[i]);
		victim_count++;
	}
}

static void get_ready(void)
{
	struct sched_param parameter = { .sched_priority = PRIORITY };

	/* Either may be refused: then this is a floor of a higher level. */
	mlockall(MCL_CURRENT | MCL_FUTURE);
	sched_setscheduler(0, SCHED_FIFO, &parameter);
	record[READY_NS] = now_ns();
}

static int kill_target(int64_t woke_ns)
{
	if (kill_fd >= 0 && write(kill_fd, "1", 1) != 1)
		fail("cgroup.kill");
	for (int i = 0; i < victim_count; i++)
		syscall(SYS_pidfd_send_signal, victims[i], SIGKILL, NULL, 0);
	record[WOKE_NS] = woke_ns;
	record[KILLED_NS] = now_ns();
	return 0;
}

static int memcg(const char *cgroup, const char *level)
{
	char path[4096], line[64];
	int event = eventfd(0, EFD_CLOEXEC), usage, control, length;
	uint64_t fired;

	snprintf(path, sizeof(path), "%s/memory.usage_in_bytes", cgroup);
	usage = open_file(path, O_RDONLY);
	snprintf(path, sizeof(path), "%s/cgroup.event_control", cgroup);
	control = open_file(path, O_WRONLY);
	length = snprintf(line, sizeof(line), "%d %d %s", event, usage, level);
	if (event < 0 || write(control, line, length) != length)
		fail(path);
	get_ready();
	if (read(event, &fired, sizeof(fired)) != sizeof(fired))
		fail("eventfd");
	return kill_target(now_ns());
}

static int polled(int fd, short events)
{
	struct pollfd wait = { .fd = fd, .events = events };

	get_ready();
	while (poll(&wait, 1, -1) < 0)
		if (errno != EINTR)
			fail("poll");
	return kill_target(now_ns());
}

static int changed(const char *path)
{
	int fd = open_file(path, O_RDONLY);
	char text[512];

	if (read(fd, text, sizeof(text)) < 0) /* POLLPRI tells of what has changed since it was read */
		fail(path);
	return polled(fd, POLLPRI);
}

static void sleep_ms(long ms)
{
	struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

static int read_again(const char *path, int64_t level, long interval_ms, long phase_ms)
{
	int fd = open_file(path, O_RDONLY);
	char text[32];

	get_ready();
	sleep_ms(phase_ms);
	for (;;) {
		memset(text, 0, sizeof(text));
		if (pread(fd, text, sizeof(text) - 1, 0) <= 0)
			fail(path);
		if (atoll(text) >= level)
			return kill_target(now_ns());
		sleep_ms(interval_ms);
	}
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";
	int taken = !strcmp(mode, "memcg") ? 5 : !strcmp(mode, "poll") ? 7 : 4;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (count <= taken) {
		fprintf(stderr, "floor: one of memcg, ring, events, poll with their arguments\n");
		return 1;
	}
	open_record(arguments[2]);
	hold_target(count - taken, arguments + taken);
	if (!strcmp(mode, "memcg"))
		return memcg(arguments[3], arguments[4]);
	if (!strcmp(mode, "ring"))
		return polled(atoi(arguments[3]), POLLIN);
	if (!strcmp(mode, "events"))
		return changed(arguments[3]);
	if (!strcmp(mode, "poll"))
		return read_again(arguments[3], atoll(arguments[4]), atol(arguments[5]), atol(arguments[6]));
	fprintf(stderr, "floor: %s: one of memcg, ring, events, poll\n", mode);
	return 1;
}
