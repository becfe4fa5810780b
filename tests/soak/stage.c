/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the soak: starts the processes of every pod, has them take and give back memory as told, samples the
 * kernel's counters, and tells when a process died. With its own clock readings and its own parsing, so that nothing
 * the oracle goes by comes from the daemon or shares code with it.
 *
 *   stage SHARED_FD CAPACITY USAGE STAT INACTIVE_KEY PEAK SLOWNESS FLUSH
 *
 * SHARED_FD is a zeroed memfd of 64-bit words that is mapped by both sides (see the enums, and stage.py, which has the same
 * numbers); USAGE and STAT are the node's counters, PEAK shows the most that it used since it was last written to (- where
 * the kernel has no such file), SLOWNESS is how many times as long as usual everything takes. FLUSH is a file whose
 * reading brings the statistics up to date, which lag behind by 64 pages and more for each CPU otherwise (- for none).
 * Commands are lines on standard input:
 *
 *   pod SLOT INSTANCE USAGE STAT PROCS...  start an actor and its canary in the cgroups whose cgroup.procs are given;
 *                                      the last is the actor's alone
 *   act SLOT KIND BYTES RATE PATH          have the slot's actor do something; see perform()
 *   kill SLOT                              end the slot's processes
 *   free SLOT                              close the slot's counters
 *
 * Standard output: `up INSTANCE` or `stillborn INSTANCE` (killed before it stood), `done INSTANCE`, `saved INSTANCE` (after
 * SIGTERM, which ends the canary at once), `dead INSTANCE canary|actor|worker NS SEEN_NS`, `error WORDS`. Instants are CLOCK_MONOTONIC nanoseconds. A canary dies of the kill that its
 * actor dies of, and has nothing to tear down. The kernel may kill the process that takes memory before all others of
 * its pod: `struck INSTANCE NS`, before its `dead`, says when it last showed that it ran.
 * Ends with its standard input, and takes everybody with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 32
#define HEADER_WORDS 64
#define SLOT_WORDS 16
#define SAMPLE_HEAD 8
#define SAMPLE_WORDS (SAMPLE_HEAD + 3 * SLOTS)
#define SAMPLES 32768
#define WORDS (HEADER_WORDS + SLOTS * SLOT_WORDS + (int64_t)SAMPLES * SAMPLE_WORDS)
#define PAGE 4096L
#define CHUNK (8 * PAGE)
#define SECOND_NS 1000000000LL
#define PAUSE_NS 400000
#define FAR_PAUSE_NS 1000000
#define BEAT_EVERY_NS 1000000

enum header { CAPACITY, THRESHOLD, SAMPLING, LEVEL, CROSSED_NS, HEAD, NEAR_BYTES };
#define WORKERS 3

/* PROGRESS_NS: when the actor, and each of its workers, took its last chunk; 0: it takes nothing. SAVE_NS: how long the
 * actor needs to end at SIGTERM. */
enum slot {
	INSTANCE, STOP, CANARY_PID, BEAT_NS, PROGRESS_NS,
	WORKER_PIDS = PROGRESS_NS + 1 + WORKERS, SAVE_NS = WORKER_PIDS + WORKERS
};
enum role { ACTOR, CANARY, WORKER, ROLES };
enum sample { BEGAN_NS, ENDED_NS, USAGE, INACTIVE, PEAK };

struct pod {
	int usage_fd, stat_fd; /* read by the sampler, changed under `lock` */
	int64_t instance;
	int actor_fd, canary_fd; /* pidfds, -1 once dead */
	int worker_fds[WORKERS], dying; /* of those that outlive their actor: the watcher's alone */
	int64_t ended_ns; /* when it was ended by an order; 0: it was not */
	int orders; /* the actor's standard input */
	int has_cache; /* it was told to read a file: until then none of its usage is page cache */
};

struct order {
	char kind;
	int64_t bytes, rate;
	char path[256];
};

static volatile int64_t *shared;
static struct pod pods[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int node_usage, node_stat, node_peak = -1, node_flush = -1;
static const char *inactive_key;
static int inbox;
static double slowness = 1;

static void fail(const char *what)
{
	fprintf(stderr, "stage: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void sleep_until(int64_t at_ns)
{
	struct timespec at = { .tv_sec = at_ns / SECOND_NS, .tv_nsec = at_ns % SECOND_NS };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* One write for each line: whole lines, whoever writes. */
__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
	char line[256];
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	if (write(STDOUT_FILENO, line, length) < 0)
		_exit(1);
}

static int64_t counter(int fd)
{
	char text[32];
	ssize_t length = pread(fd, text, sizeof(text) - 1, 0);

	if (length <= 0)
		return -1;
	text[length] = 0;
	return strtoll(text, NULL, 10);
}

static int64_t inactive_file(int fd)
{
	char text[8192];
	ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
	char *line = text;

	if (length <= 0)
		return -1;
	text[length] = 0;
	while ((line = strstr(line, inactive_key))) {
		size_t key = strlen(inactive_key);

		if ((line == text || line[-1] == '\n') && line[key] == ' ')
			return strtoll(line + key, NULL, 10);
		line += key;
	}
	return -1;
}

static volatile int64_t *slot_words(int slot)
{
	return shared + HEADER_WORDS + slot * SLOT_WORDS;
}

/* --- the actor: what a pod does ------------------------------------------------------------------------------- */

static volatile int64_t *progress_ns; /* of this process */
static volatile int64_t *own; /* the actor's slot */
static void *kept; /* the last private mapping, for kind u */
static int64_t kept_bytes;

static void note_crossing(int64_t before_ns)
{
	int64_t none = 0, level = shared[LEVEL];

	if (level && !shared[CROSSED_NS] && counter(node_usage) >= level)
		__atomic_compare_exchange_n((int64_t *)shared + CROSSED_NS, &none, before_ns, 0, __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST);
}

/* Call `touch` for each chunk up to `bytes`, `rate` bytes a second (0: as fast as it goes), until told to stop. */
static void paced(volatile int64_t *slot, int64_t bytes, int64_t rate, void (*touch)(void *, int64_t, int64_t),
		  void *what)
{
	int64_t began_ns = now_ns(), at = 0;

	while (at < bytes && !slot[STOP]) {
		int64_t chunk = bytes - at < CHUNK ? bytes - at : CHUNK, before_ns;

		if (rate)
			sleep_until(began_ns + (int64_t)((double)at / rate * SECOND_NS));
		before_ns = now_ns();
		*progress_ns = before_ns;
		touch(what, at, chunk);
		at += chunk;
		note_crossing(before_ns);
	}
	*progress_ns = 0;
}

static void touch_memory(void *memory, int64_t at, int64_t bytes)
{
	for (int64_t offset = 0; offset < bytes; offset += PAGE)
		((volatile char *)memory)[at + offset] = 1;
}

static void touch_file(void *descriptor, int64_t at, int64_t bytes)
{
	static char buffer[CHUNK];

	if (pread(*(int *)descriptor, buffer, bytes, at) < 0)
		return;
}

static void map_and_touch(volatile int64_t *slot, const struct order *order, int flags, int fd)
{
	void *memory = mmap(NULL, order->bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (memory == MAP_FAILED) {
		tell("error mmap %lld\n", (long long)slot[INSTANCE]);
		return;
	}
	madvise(memory, order->bytes, MADV_NOHUGEPAGE);
	if (order->kind == 'a') {
		kept = memory;
		kept_bytes = order->bytes;
	}
	paced(slot, order->bytes, order->rate, touch_memory, memory);
}

/* A share of the memory for each of several processes at once, which keep it. Returns when all have it, or are dead. */
static void share_among_workers(volatile int64_t *slot, const struct order *order)
{
	struct order part = *order;
	pid_t workers[WORKERS];
	int left = WORKERS;

	part.bytes /= WORKERS;
	part.rate /= WORKERS;
	for (int number = 0; number < WORKERS; number++) {
		volatile int64_t *place = slot + PROGRESS_NS + 1 + number;
		pid_t actor_pid = getpid();

		*place = now_ns();
		workers[number] = fork();
		if (workers[number] < 0)
			tell("error fork %lld\n", (long long)slot[INSTANCE]);
		slot[WORKER_PIDS + number] = workers[number] ? workers[number] : getpid();
		if (workers[number])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != actor_pid)
			_exit(0);
		progress_ns = place;
		map_and_touch(slot, &part, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		for (;;)
			pause();
	}
	while (left) {
		sleep_until(now_ns() + SECOND_NS / 1000);
		for (int number = 0; number < WORKERS; number++) {
			volatile int64_t *place = slot + PROGRESS_NS + 1 + number;

			if (!workers[number])
				continue;
			if (waitpid(workers[number], NULL, WNOHANG) == workers[number]) {
				tell("struck %lld %lld\n", (long long)slot[INSTANCE], (long long)*place);
				tell("dead %lld worker %lld %lld\n", (long long)slot[INSTANCE], (long long)now_ns(),
				     (long long)now_ns());
				slot[WORKER_PIDS + number] = 0;
			} else if (*place) {
				continue;
			}
			workers[number] = 0;
			left--;
		}
	}
}

/* a: anonymous memory; p: of several processes; u: what was last taken as such given back; s: shared anonymous
 * memory; t: a file of a tmpfs, mapped; f: a file, read once; F: twice, so that its pages are active; d: the page
 * cache of a file dropped. */
static void perform(volatile int64_t *slot, const struct order *order)
{
	int fd = -1;

	if (strchr("tfFd", order->kind)) {
		fd = open(order->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0) {
			tell("error open %lld\n", (long long)slot[INSTANCE]);
			return;
		}
		if (order->kind != 'd' && ftruncate(fd, order->bytes) < 0)
			tell("error ftruncate %lld\n", (long long)slot[INSTANCE]);
	}
	switch (order->kind) {
	case 'a':
		map_and_touch(slot, order, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		break;
	case 'p':
		share_among_workers(slot, order);
		break;
	case 'u':
		if (kept)
			munmap(kept, kept_bytes);
		kept = NULL;
		break;
	case 's':
		map_and_touch(slot, order, MAP_SHARED | MAP_ANONYMOUS, -1);
		break;
	case 't':
		map_and_touch(slot, order, MAP_SHARED, fd);
		break;
	case 'f':
	case 'F':
		posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
		for (int round = 0; round < (order->kind == 'F' ? 2 : 1); round++)
			paced(slot, order->bytes, round ? 0 : order->rate, touch_file, &fd);
		break;
	case 'd':
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		break;
	}
	if (fd >= 0)
		close(fd);
}

/* The actor takes no more, and holds what it has until its state is saved. */
static void on_term(int number)
{
	(void)number;
	if (own[SAVE_NS]) {
		sleep_until(now_ns() + own[SAVE_NS]);
		tell("saved %lld\n", (long long)own[INSTANCE]);
	}
	_exit(0);
}

static int entrance(const char *procs)
{
	int fd = open(procs, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		_exit(125);
	return fd;
}

static void enter(int procs)
{
	if (write(procs, "0", 1) < 0)
		_exit(125);
	close(procs);
}

/* What was forked has the descriptors of every pod. */
static void keep_only(int *orders, int *last)
{
	int kept = dup3(*orders, 1000, O_CLOEXEC), usage = dup3(node_usage, 1001, O_CLOEXEC);

	*last = dup3(*last, 1002, O_CLOEXEC);
	if (kept < 0 || usage < 0 || *last < 0)
		_exit(124);
	close_range(3, 999, 0);
	close_range(1003, ~0U, 0);
	*orders = kept;
	node_usage = usage;
}

/* Ready to die at once, on a busy machine too: its death is the clock of the kill. An exit waits for anybody on the
 * machine who moves a process between cgroups (cgroup_threadgroup_rwsem); so it also shows that it still runs. */
static void canary(volatile int64_t *slot)
{
	struct sched_param parameter = { .sched_priority = 3 };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (sched_setscheduler(0, SCHED_FIFO, &parameter) < 0)
		tell("error real-time\n");
	for (;;) {
		slot[BEAT_NS] = now_ns();
		sleep_until(slot[BEAT_NS] + (int64_t)(BEAT_EVERY_NS * slowness));
	}
}

/* The last of `procs` is that of the cpu controller: where real time is handed out by cgroups, which v1 may, new ones
 * have none of it, and the canary stays outside. All are opened outside: a path that is looked up in the pod leaves
 * entries of the kernel's caches charged to it, 5 kB a pod, which outlive it and become the node's. */
static void actor(int slot_number, int orders, char **procs)
{
	volatile int64_t *slot = slot_words(slot_number);
	struct order order;
	int entrances[8], count = 0, last;
	pid_t child;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (; procs[count] && count < 8; count++)
		entrances[count] = entrance(procs[count]);
	last = entrances[count - 1];
	for (int number = 0; number < count - 1; number++)
		enter(entrances[number]);
	keep_only(&orders, &last);
	progress_ns = slot + PROGRESS_NS;
	child = fork();
	if (!child)
		canary(slot);
	own = slot;
	signal(SIGTERM, on_term);
	enter(last);
	slot[CANARY_PID] = child;
	while (read(orders, &order, sizeof(order)) == sizeof(order)) {
		perform(slot, &order);
		tell("done %lld\n", (long long)slot[INSTANCE]);
	}
	_exit(0);
}

/* --- the sampler ------------------------------------------------------------------------------------------------ */

/* The most that the node used since the last sample: what was between two of them, too, may have been read. */
static int64_t peak_since(void)
{
	int64_t peak = node_peak < 0 ? 0 : counter(node_peak);

	return node_peak >= 0 && pwrite(node_peak, "0", 1, 0) < 0 ? 0 : peak;
}

static void sample_pods(int64_t began_ns, int64_t usage, int64_t inactive)
{
	volatile int64_t *words = shared + HEADER_WORDS + SLOTS * SLOT_WORDS + (shared[HEAD] % SAMPLES) * SAMPLE_WORDS;

	words[BEGAN_NS] = began_ns;
	words[USAGE] = usage;
	words[INACTIVE] = inactive;
	words[PEAK] = peak_since();
	pthread_mutex_lock(&lock);
	for (int slot = 0; slot < SLOTS; slot++) {
		volatile int64_t *place = words + SAMPLE_HEAD + 3 * slot;

		place[0] = pods[slot].usage_fd < 0 ? 0 : pods[slot].instance;
		if (!place[0])
			continue;
		place[1] = counter(pods[slot].usage_fd);
		/* The statistics cost ten times what the usage does. */
		place[2] = place[1] > 0 && pods[slot].has_cache ? inactive_file(pods[slot].stat_fd) : 0;
	}
	pthread_mutex_unlock(&lock);
	words[ENDED_NS] = now_ns();
	__atomic_store_n((int64_t *)shared + HEAD, shared[HEAD] + 1, __ATOMIC_SEQ_CST);
}

static void *sampler(void *unused)
{
	(void)unused;
	for (;;) {
		int64_t began_ns = now_ns(), usage, inactive, took_ns, pause_ns;

		if (!shared[SAMPLING]) {
			sleep_until(began_ns + SECOND_NS / 1000);
			continue;
		}
		usage = counter(node_usage);
		if (node_flush >= 0)
			counter(node_flush);
		inactive = inactive_file(node_stat);
		shared[LEVEL] = shared[CAPACITY] - shared[THRESHOLD] + inactive;
		sample_pods(began_ns, usage, inactive);
		/* A third of the time at the most: the kernel throttles real time that takes nearly all of a CPU, the
		 * guard's too. What moves far from the level decides nothing. */
		took_ns = now_ns() - began_ns;
		pause_ns = slowness * (usage >= shared[LEVEL] - shared[NEAR_BYTES] ? PAUSE_NS : FAR_PAUSE_NS);
		sleep_until(began_ns + took_ns + (pause_ns > 2 * took_ns ? pause_ns : 2 * took_ns));
	}
	return NULL;
}

/* --- the stage ---------------------------------------------------------------------------------------------------- */

static int open_counter(const char *path)
{
	return open(path, O_RDONLY | O_CLOEXEC);
}

static void watch(int fd, int slot, enum role role, int number)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT,
				     .data.u64 = (slot * ROLES + role) * WORKERS + number };

	if (epoll_ctl(inbox, EPOLL_CTL_ADD, fd, &event) < 0)
		fail("epoll_ctl");
}

static void free_counters(struct pod *pod)
{
	pthread_mutex_lock(&lock);
	if (pod->usage_fd >= 0) {
		close(pod->usage_fd);
		close(pod->stat_fd);
	}
	pod->usage_fd = pod->stat_fd = -1;
	pthread_mutex_unlock(&lock);
}

static void kill_pod(struct pod *pod)
{
	pthread_mutex_lock(&lock);
	if (pod->canary_fd >= 0 && !pod->ended_ns)
		pod->ended_ns = now_ns();
	if (pod->actor_fd >= 0)
		syscall(SYS_pidfd_send_signal, pod->actor_fd, SIGKILL, NULL, 0);
	if (pod->canary_fd >= 0)
		syscall(SYS_pidfd_send_signal, pod->canary_fd, SIGKILL, NULL, 0);
	pthread_mutex_unlock(&lock);
}

static int has_ended(int pidfd)
{
	struct pollfd ended = { .fd = pidfd, .events = POLLIN };

	return poll(&ended, 1, 0) == 1;
}

static void start_pod(int slot, int64_t instance, const char *usage, const char *stat, char **procs)
{
	volatile int64_t *words = slot_words(slot);
	struct pod *pod = &pods[slot];
	int usage_fd = open_counter(usage), stat_fd = open_counter(stat), pipe_fds[2];
	pid_t child;

	if (usage_fd < 0 || stat_fd < 0 || pod->actor_fd >= 0 || pipe2(pipe_fds, O_CLOEXEC) < 0) {
		tell("error pod %lld\n", (long long)instance);
		return;
	}
	free_counters(pod);
	for (int word = 0; word < SLOT_WORDS; word++)
		words[word] = 0;
	words[INSTANCE] = instance;
	pod->ended_ns = 0;
	child = fork();
	if (!child)
		actor(slot, pipe_fds[0], procs);
	close(pipe_fds[0]);
	pod->orders = pipe_fds[1];
	pod->actor_fd = syscall(SYS_pidfd_open, child, 0);
	while (!words[CANARY_PID] && !waitpid(child, NULL, WNOHANG))
		sleep_until(now_ns() + 20000);
	pod->canary_fd = words[CANARY_PID] ? syscall(SYS_pidfd_open, (pid_t)words[CANARY_PID], 0) : -1;
	/* Before its first beat a canary is at ordinary priority, and tells nothing. */
	while (pod->canary_fd >= 0 && !words[BEAT_NS] && !has_ended(pod->canary_fd))
		sleep_until(now_ns() + 20000);
	if (pod->actor_fd < 0 || pod->canary_fd < 0 || !words[BEAT_NS]) { /* killed before it stood */
		kill_pod(pod);
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
		close(pod->orders);
		close(pod->actor_fd);
		close(pod->canary_fd);
		close(usage_fd);
		close(stat_fd);
		pod->actor_fd = pod->canary_fd = -1;
		tell("stillborn %lld\n", (long long)instance);
		return;
	}
	pthread_mutex_lock(&lock);
	pod->instance = instance;
	pod->has_cache = 0;
	pod->usage_fd = usage_fd;
	pod->stat_fd = stat_fd;
	pthread_mutex_unlock(&lock);
	watch(pod->actor_fd, slot, ACTOR, 0);
	watch(pod->canary_fd, slot, CANARY, 0);
	tell("up %lld\n", (long long)instance);
}

/* Watch the workers that outlive their actor: they are ours now. The pod's memory is back with the last of them. */
static void watch_workers(int slot)
{
	struct pod *pod = &pods[slot];

	pod->dying = 0;
	for (int number = 0; number < WORKERS; number++) {
		pid_t pid = slot_words(slot)[WORKER_PIDS + number];

		pod->worker_fds[number] = pid ? syscall(SYS_pidfd_open, pid, 0) : -1;
		if (pod->worker_fds[number] < 0)
			continue;
		pod->dying++;
		watch(pod->worker_fds[number], slot, WORKER, number);
	}
}

static void worker_died(int slot, int number, int64_t at_ns)
{
	struct pod *pod = &pods[slot];

	close(pod->worker_fds[number]);
	if (!--pod->dying)
		tell("dead %lld actor %lld %lld\n", (long long)pod->instance, (long long)at_ns, (long long)at_ns);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

/* Return when the pod last showed that it ran: a canary that gets no CPU does not beat, and may live. */
static int64_t last_sign_of_life(int slot)
{
	int64_t last_ns = slot_words(slot)[BEAT_NS] + (int64_t)(BEAT_EVERY_NS * slowness);

	for (int number = 0; number <= WORKERS; number++)
		if (slot_words(slot)[PROGRESS_NS + number] > last_ns)
			last_ns = slot_words(slot)[PROGRESS_NS + number];
	return last_ns;
}

static void died(int slot, int is_canary, int64_t at_ns)
{
	struct pod *pod = &pods[slot];
	int *fd = is_canary ? &pod->canary_fd : &pod->actor_fd;
	int64_t beat_ns = slot_words(slot)[BEAT_NS], beat_every_ns = BEAT_EVERY_NS * slowness, seen_ns = at_ns;

	if (!is_canary)
		watch_workers(slot);
	if (is_canary && beat_ns && at_ns - beat_ns > 2 * beat_every_ns)
		at_ns = last_sign_of_life(slot); /* its exit was held up: the kill came before its next beat */
	pthread_mutex_lock(&lock);
	if (pod->ended_ns && at_ns < pod->ended_ns)
		at_ns = pod->ended_ns; /* it did not beat for want of a CPU, and was ended by us */
	if (!is_canary && slot_words(slot)[PROGRESS_NS])
		tell("struck %lld %lld\n", (long long)pod->instance, (long long)slot_words(slot)[PROGRESS_NS]);
	if (is_canary || !pod->dying)
		tell("dead %lld %s %lld %lld\n", (long long)pod->instance, is_canary ? "canary" : "actor",
		     (long long)at_ns, (long long)seen_ns);
	close(*fd);
	*fd = -1;
	if (!is_canary)
		close(pod->orders);
	pthread_mutex_unlock(&lock);
	while (waitpid(-1, NULL, WNOHANG) > 0) /* a zombie keeps its cgroup busy */
		;
}

/* In a thread of its own: starting a pod takes milliseconds, and the instants of deaths are not to wait for it. */
static void *watcher(void *unused)
{
	(void)unused;
	for (;;) {
		struct epoll_event events[16];
		int found = epoll_wait(inbox, events, 16, -1);
		int64_t at_ns = now_ns();

		for (int event = 0; event < found; event++) {
			int number = events[event].data.u64 % WORKERS, place = events[event].data.u64 / WORKERS;

			if (place % ROLES == WORKER)
				worker_died(place / ROLES, number, at_ns);
			else
				died(place / ROLES, place % ROLES == CANARY, at_ns);
		}
	}
	return NULL;
}

static void order(struct pod *pod, const struct order *what)
{
	pthread_mutex_lock(&lock);
	pod->has_cache |= strchr("fFd", what->kind) != NULL;
	/* An actor that has just been killed leaves nobody to read: its death tells. */
	if (pod->actor_fd >= 0 && write(pod->orders, what, sizeof(*what)) < 0 && errno != EPIPE)
		fail("order");
	pthread_mutex_unlock(&lock);
}

static void command(char *line)
{
	char *words[16] = { NULL }, *rest = NULL;
	int count = 0, slot;

	for (char *word = strtok_r(line, " ", &rest); word && count < 15; word = strtok_r(NULL, " ", &rest))
		words[count++] = word;
	slot = count > 1 ? atoi(words[1]) : -1;
	if (slot < 0 || slot >= SLOTS) {
		tell("error command\n");
	} else if (!strcmp(words[0], "pod") && count > 5) {
		start_pod(slot, atoll(words[2]), words[3], words[4], words + 5);
	} else if (!strcmp(words[0], "act") && count > 5) {
		struct order what = { .kind = *words[2], .bytes = atoll(words[3]), .rate = atoll(words[4]) };

		snprintf(what.path, sizeof(what.path), "%s", words[5]);
		order(&pods[slot], &what);
	} else if (!strcmp(words[0], "kill")) {
		kill_pod(&pods[slot]);
	} else if (!strcmp(words[0], "free")) {
		free_counters(&pods[slot]);
	} else {
		tell("error command\n");
	}
}

static void read_commands(void)
{
	static char buffer[65536];
	static size_t used;
	ssize_t length = read(STDIN_FILENO, buffer + used, sizeof(buffer) - used);
	char *line = buffer, *end;

	if (length <= 0) {
		for (int slot = 0; slot < SLOTS; slot++)
			kill_pod(&pods[slot]);
		exit(0);
	}
	used += length;
	while ((end = memchr(line, '\n', buffer + used - line))) {
		*end = 0;
		command(line);
		line = end + 1;
	}
	used -= line - buffer;
	memmove(buffer, line, used);
}

static void start_thread(void *(*run)(void *), int priority)
{
	struct sched_param parameter = { .sched_priority = priority };
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL))
		fail("pthread_create");
	if (pthread_setschedparam(thread, SCHED_FIFO, &parameter))
		fprintf(stderr, "stage: no real-time priority; its clock readings come later\n");
}

int main(int count, char **arguments)
{
	if (count != 9) {
		fprintf(stderr, "usage: stage SHARED_FD CAPACITY USAGE STAT INACTIVE_KEY PEAK SLOWNESS FLUSH\n");
		return 1;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* a canary whose actor died is ours to reap */
	signal(SIGPIPE, SIG_IGN);
	/* Of the program and its libraries, too, no page may be read again, and charged, by a pod. */
	if (mlockall(MCL_CURRENT) < 0)
		fail("mlockall");
	shared = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(arguments[1]), 0);
	if (shared == MAP_FAILED)
		fail("shared memory");
	for (int64_t word = 0; word < WORDS; word += PAGE / 8) /* charged to us, and to no pod */
		shared[word] = shared[word];
	shared[CAPACITY] = atoll(arguments[2]);
	node_usage = open_counter(arguments[3]);
	node_stat = open_counter(arguments[4]);
	inactive_key = arguments[5];
	slowness = atof(arguments[7]);
	if (strcmp(arguments[6], "-"))
		node_peak = open(arguments[6], O_RDWR | O_CLOEXEC);
	if (strcmp(arguments[8], "-"))
		node_flush = open_counter(arguments[8]);
	if (node_usage < 0 || node_stat < 0 || (node_peak < 0 && strcmp(arguments[6], "-")) ||
	    (node_flush < 0 && strcmp(arguments[8], "-")))
		fail("the node's counters");
	for (int slot = 0; slot < SLOTS; slot++)
		pods[slot] = (struct pod){ .usage_fd = -1, .stat_fd = -1, .actor_fd = -1, .canary_fd = -1, .orders = -1 };
	inbox = epoll_create1(EPOLL_CLOEXEC);
	if (inbox < 0)
		fail("epoll_create1");
	start_thread(sampler, 1);
	start_thread(watcher, 4);
	for (;;)
		read_commands();
}
